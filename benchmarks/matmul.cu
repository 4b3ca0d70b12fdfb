// C = A B for square matrices in single precision, twice: one product a thread from global memory,
// and by tiles in shared memory. Each is run a few times; the program checks that they agree.
//
//     nvcc -O3 -arch=native -o matmul matmul.cu && ./matmul 2048
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr int TILE = 32;
constexpr int RUNS = 3;

#define CHECK(call)                                                                \
    do {                                                                           \
        cudaError_t status = (call);                                               \
        if (status != cudaSuccess) {                                               \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status));   \
            std::exit(1);                                                          \
        }                                                                          \
    } while (0)

__global__ void matmul_naive(const float* a, const float* b, float* c, int n) {
    int row = blockIdx.y * blockDim.y + threadIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n || col >= n) return;
    float sum = 0.0f;
    for (int k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + col];
    c[row * n + col] = sum;
}

// n is a multiple of TILE.
__global__ void matmul_tiled(const float* a, const float* b, float* c, int n) {
    __shared__ float left[TILE][TILE], right[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * TILE + y, col = blockIdx.x * TILE + x;
    float sum = 0.0f;
    for (int start = 0; start < n; start += TILE) {
        left[y][x] = a[row * n + start + x];
        right[y][x] = b[(start + y) * n + col];
        __syncthreads();
        for (int k = 0; k < TILE; ++k) sum += left[y][k] * right[k][x];
        __syncthreads();
    }
    c[row * n + col] = sum;
}

int main(int argc, char** argv) {
    int n = argc > 1 ? std::atoi(argv[1]) : 2048;
    if (n <= 0 || n % TILE) {
        std::fprintf(stderr, "%d: a positive multiple of %d is needed\n", n, TILE);
        return 2;
    }
    size_t bytes = sizeof(float) * n * n;
    std::vector<float> host(size_t(n) * n), naive(host.size()), tiled(host.size());
    for (size_t i = 0; i < host.size(); ++i) host[i] = float(i % 7) - 3.0f;
    float *a, *b, *c;
    CHECK(cudaMalloc(&a, bytes));
    CHECK(cudaMalloc(&b, bytes));
    CHECK(cudaMalloc(&c, bytes));
    CHECK(cudaMemcpy(a, host.data(), bytes, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(b, host.data(), bytes, cudaMemcpyHostToDevice));
    dim3 block(TILE, TILE), grid(n / TILE, n / TILE);
    for (int run = 0; run < RUNS; ++run) matmul_naive<<<grid, block>>>(a, b, c, n);
    CHECK(cudaMemcpy(naive.data(), c, bytes, cudaMemcpyDeviceToHost));
    for (int run = 0; run < RUNS; ++run) matmul_tiled<<<grid, block>>>(a, b, c, n);
    CHECK(cudaMemcpy(tiled.data(), c, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < host.size(); ++i)
        if (std::fabs(naive[i] - tiled[i]) > 1e-3f * (1.0f + std::fabs(naive[i]))) {
            std::fprintf(stderr, "the products differ at %zu: %g and %g\n", i, naive[i], tiled[i]);
            return 1;
        }
    std::printf("%d x %d: both products agree\n", n, n);
    return 0;
}
