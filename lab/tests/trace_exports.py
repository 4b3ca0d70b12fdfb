"""Exports of Nsight Systems made by hand, as nsys export --type sqlite writes them."""

import sqlite3

PID = 4321 << 24  # as nsys serializes process 4321
WHERE = "start INT, end INT, deviceId INT, streamId INT, correlationId INT, globalPid INT"
SHAPE = "gridX INT, gridY INT, gridZ INT, blockX INT, blockY INT, blockZ INT"
TABLES = {
    "StringIds": "id INT, value TEXT",
    "TARGET_INFO_GPU": "id INT, name TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{WHERE}, demangledName INT, shortName INT, {SHAPE},"
    " registersPerThread INT, staticSharedMemory INT, dynamicSharedMemory INT",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{WHERE}, bytes INT, copyKind INT, srcKind INT, dstKind INT",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{WHERE}, bytes INT",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INT, end INT, globalTid INT, correlationId INT,"
    " nameId INT",
    "NVTX_EVENTS": "start INT, end INT, globalTid INT, text TEXT, textId INT",
    "PROFILER_OVERHEAD": "start INT, end INT, globalTid INT",
}
STRINGS = {1: "nvjet_tst_64x64", 2: "cudaLaunchKernel_v7000", 3: "cudaMemcpyAsync_v3020",
           4: "cudaDeviceSynchronize_v3020", 5: "forward"}  # fmt: skip


def export(*, without=(), second=False):
    """A file of three steps of 1 ms: a kernel of 400 us, a copy of 100 us, and a sync."""
    connection = sqlite3.connect(":memory:")
    for table, columns in TABLES.items():
        if table not in without:
            kept = [c for c in columns.split(", ") if c.split()[0] not in without]
            connection.execute(f"CREATE TABLE {table} ({', '.join(c.strip() for c in kept)})")

    def add(table, **row):
        if table not in without:
            row = {f'"{key}"': value for key, value in row.items() if key not in without}
            marks = ", ".join("?" * len(row))
            connection.execute(
                f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", [*row.values()]
            )

    for number, text in STRINGS.items():
        add("StringIds", id=number, value=text)
    add("TARGET_INFO_GPU", id=0, name="NVIDIA H100")
    for pid in (PID, PID + (1 << 24)) if second else (PID,):
        tid = pid + 77
        for i in range(3):
            t = 5_000_000_000 + 1_000_000 * i
            add("NVTX_EVENTS", start=t, end=t + 999_000, globalTid=tid, text=f"step_{i}")
            add("NVTX_EVENTS", start=t + 10, end=t + 90_000, globalTid=tid, textId=5)
            add("NVTX_EVENTS", start=t + 20, end=t + 80_000, globalTid=tid,
                text="aten::mm, seq = 3, op_id = 12")  # fmt: skip
            add("NVTX_EVENTS", start=t + 30, end=None, globalTid=tid, text="a mark")
            where = dict(deviceId=0, streamId=7, globalPid=pid)
            shape = dict(gridX=2, gridY=66, gridZ=1, blockX=384, blockY=1, blockZ=1)
            more = dict(registersPerThread=168, staticSharedMemory=100, dynamicSharedMemory=50)
            add("CUPTI_ACTIVITY_KIND_RUNTIME", start=t + 1000, end=t + 2000, globalTid=tid,
                correlationId=10 * i, nameId=2)  # fmt: skip
            add("CUPTI_ACTIVITY_KIND_KERNEL", start=t + 100_000, end=t + 500_000, demangledName=1,
                shortName=1, correlationId=10 * i, **where, **shape, **more)  # fmt: skip
            add("CUPTI_ACTIVITY_KIND_RUNTIME", start=t + 3000, end=t + 4000, globalTid=tid,
                correlationId=10 * i + 1, nameId=3)  # fmt: skip
            add("CUPTI_ACTIVITY_KIND_MEMCPY", start=t + 450_000, end=t + 600_000, bytes=4096,
                copyKind=1, srcKind=0, dstKind=2, correlationId=10 * i + 1, **where)  # fmt: skip
            add("CUPTI_ACTIVITY_KIND_RUNTIME", start=t + 5000, end=t + 650_000, globalTid=tid,
                correlationId=10 * i + 2, nameId=4)  # fmt: skip
    connection.commit()
    return connection
