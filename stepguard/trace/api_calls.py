"""Names of CUDA's and HIP's API calls, by what they do, and sizes of the element types in traces.
Calls of another vendor belong into these tables.
"""

API_CATEGORIES = ("cuda_runtime", "cuda_driver")  # of trace events: calls of the host

LAUNCH_CALLS = frozenset(
    {
        "cudaLaunchKernel",
        "cudaLaunchKernelExC",
        "cuLaunchKernel",
        "cuLaunchKernelEx",
        "cudaLaunchCooperativeKernel",
        "cuLaunchCooperativeKernel",
        "cudaGraphLaunch",
        "cuGraphLaunch",
        "hipLaunchKernel",
        "hipLaunchKernelExC",
        "hipExtLaunchKernel",
        "hipModuleLaunchKernel",
        "hipExtModuleLaunchKernel",
        "hipHccModuleLaunchKernel",
        "hipLaunchCooperativeKernel",
        "hipModuleLaunchCooperativeKernel",
        "hipGraphLaunch",
    }
)

# call -> what the host waits for. cudaMemcpy without Async waits for its copy, and memory is freed
# once the device is done.
SYNC_CALLS = {
    "cudaStreamSynchronize": "stream",
    "cuStreamSynchronize": "stream",
    "cudaDeviceSynchronize": "device",
    "cuCtxSynchronize": "device",
    "cudaEventSynchronize": "event",
    "cuEventSynchronize": "event",
    "cudaMemcpy": "copy",
    "cudaMemcpy2D": "copy",
    "cudaMemcpy3D": "copy",
    "cudaMemcpyToSymbol": "copy",
    "cudaMemcpyFromSymbol": "copy",
    "cuMemcpyDtoH_v2": "copy",
    "cuMemcpyHtoD_v2": "copy",
    "hipStreamSynchronize": "stream",
    "hipDeviceSynchronize": "device",
    "hipCtxSynchronize": "device",
    "hipEventSynchronize": "event",
    "hipMemcpy": "copy",
    "hipMemcpy2D": "copy",
    "hipMemcpy3D": "copy",
    "hipMemcpyWithStream": "copy",
    "hipMemcpyToSymbol": "copy",
    "hipMemcpyFromSymbol": "copy",
    "hipMemcpyDtoH": "copy",
    "hipMemcpyHtoD": "copy",
    "cudaFree": "free",
    "cuMemFree_v2": "free",
    "hipFree": "free",
}

# Calls that order the work of streams, by the beginning of their names: cudaEventRecordWithFlags,
# too.
_ORDERING = tuple(
    f"{api}{call}"
    for api in ("cuda", "cu", "hip")
    for call in ("EventRecord", "StreamWaitEvent", "LaunchHostFunc")
)

DTYPE_BYTES = {
    "bool": 1,
    "byte": 1,
    "char": 1,
    "unsigned char": 1,
    "signed char": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "short": 2,
    "half": 2,
    "c10::half": 2,
    "bfloat16": 2,
    "c10::bfloat16": 2,
    "int": 4,
    "float": 4,
    "long": 8,
    "long int": 8,
    "double": 8,
}


def works(call: str) -> bool:
    """Return whether the API call gives the GPU work."""
    return call in LAUNCH_CALLS or is_copy(call) or is_memset(call)


def orders(call: str) -> bool:
    """Return whether the API call makes a stream wait, or records what others wait for."""
    return call.startswith(_ORDERING)


def is_copy(call: str) -> bool:
    """Return whether the API call copies memory."""
    return call.startswith(("cudaMemcpy", "cuMemcpy", "hipMemcpy"))


def is_memset(call: str) -> bool:
    """Return whether the API call fills memory."""
    return call.startswith(("cudaMemset", "cuMemset", "hipMemset"))
