// CUDA libraries for TensorFlow on a machine without a GPU.
//
// GPU memory is address space of the host. Copies from and to the host are done,
// and small ones within the GPU. Kernels and library calls compute nothing but
// sums of two int64 numbers, such as that of the step. Everything happens at
// once, so events have always occurred. What this file does not define,
// `emulated_gpu.py` adds as functions that return 0, success.
//
// Copies, fills, kernels and allocations are lines of the file that the
// environment variable EMULATED_GPU_LOG names, with the number of the process
// appended.

#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef uintptr_t address;
typedef struct { unsigned x, y, z; } dim3;
enum { SUCCESS = 0, OUT_OF_MEMORY = 2 };

static const char *NAME = "emulated GPU";
static const size_t MEMORY = 80ull << 30;
static const int CUDA_VERSION = 12080;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void report(const char *format, ...) {
  static FILE *file;
  va_list arguments;
  va_start(arguments, format);
  pthread_mutex_lock(&lock);
  if (!file) {
    const char *name = getenv("EMULATED_GPU_LOG");
    char path[4096] = "/dev/null";
    if (name) snprintf(path, sizeof path, "%s.%d", name, (int)getpid());
    file = fopen(path, "a");
    setvbuf(file, NULL, _IOLBF, 0);
  }
  vfprintf(file, format, arguments);
  pthread_mutex_unlock(&lock);
  va_end(arguments);
}

// An object that TensorFlow only passes on; its memory is 0.
static int make(void **object) {
  *object = calloc(1, 256);
  return SUCCESS;
}

static int set(int *result, int value) {
  *result = value;
  return SUCCESS;
}

// Devices: the numbers are those of an H100.

static int num_devices(void) {
  const char *value = getenv("EMULATED_GPUS");
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  if (visible && (!*visible || *visible == '-')) return 0;
  return value ? atoi(value) : 1;
}

static int compute_capability(void) {  // the major version
  const char *value = getenv("EMULATED_COMPUTE_CAPABILITY");
  return value ? atoi(value) : 9;
}

static const int ATTRIBUTES[][2] = {  // CUdevice_attribute, value
    {1, 1024},       // threads of a block
    {2, 1024}, {3, 1024}, {4, 64},
    {5, 2147483647}, {6, 65535}, {7, 65535},  // blocks of a grid
    {8, 49152},      // shared memory of a block
    {10, 32},        // threads of a warp
    {12, 65536},     // registers of a block
    {13, 1980000},   // kHz
    {16, 132},       // multiprocessors
    {31, 1},         // kernels run at the same time
    {36, 2619000}, {37, 5120},  // memory: kHz, bits
    {38, 52428800},  // L2 cache
    {39, 2048},      // threads of a multiprocessor
    {40, 3},         // copy engines
    {41, 1},         // one address space
    {81, 233472},    // shared memory of a multiprocessor
    {82, 65536},     // registers of a multiprocessor
    {97, 232448},    // most shared memory of a block
    {106, 32},       // blocks of a multiprocessor
    {111, 1024},     // reserved shared memory
};

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  if (attribute == 33) return set(value, 1 + device);  // PCI bus
  if (attribute == 75) return set(value, compute_capability());
  for (size_t i = 0; i < sizeof ATTRIBUTES / sizeof *ATTRIBUTES; i++)
    if (ATTRIBUTES[i][0] == attribute) return set(value, ATTRIBUTES[i][1]);
  return set(value, 0);
}
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  return cuDeviceGetAttribute(value, attribute, device);
}

// Fields of cudaDeviceProp of CUDA 12, by offset.
int cudaGetDeviceProperties_v2(char *properties, int device) {
  memset(properties, 0, 1032);
  strcpy(properties, NAME);
  *(size_t *)(properties + 288) = MEMORY;
  *(size_t *)(properties + 296) = 49152;    // shared memory of a block
  *(int *)(properties + 304) = 65536;       // registers of a block
  *(int *)(properties + 308) = 32;          // threads of a warp
  *(int *)(properties + 320) = 1024;        // threads of a block
  *(dim3 *)(properties + 324) = (dim3){1024, 1024, 64};
  *(dim3 *)(properties + 336) = (dim3){2147483647, 65535, 65535};
  *(int *)(properties + 360) = compute_capability();
  *(int *)(properties + 388) = 132;         // multiprocessors
  *(int *)(properties + 616) = 52428800;    // L2 cache
  *(int *)(properties + 624) = 2048;        // threads of a multiprocessor
  *(size_t *)(properties + 640) = 233472;   // its shared memory
  return SUCCESS;
}

int cuDriverGetVersion(int *version) { return set(version, CUDA_VERSION); }
int cudaDriverGetVersion(int *version) { return set(version, CUDA_VERSION); }
int cudaRuntimeGetVersion(int *version) { return set(version, CUDA_VERSION); }
int cuDeviceGetCount(int *count) { return set(count, num_devices()); }
int cudaGetDeviceCount(int *count) { return set(count, num_devices()); }
int cuDeviceGet(int *device, int index) { return set(device, index); }
int cuDeviceGetName(char *name, int size, int device) {
  snprintf(name, size, "%s", NAME);
  return SUCCESS;
}
int cuDeviceTotalMem_v2(size_t *size, int device) {
  *size = MEMORY;
  return SUCCESS;
}
int cuDeviceGetUuid_v2(char *uuid, int device) {
  memset(uuid, 1 + device, 16);
  return SUCCESS;
}
int cuDeviceGetPCIBusId(char *id, int size, int device) {
  snprintf(id, size, "0000:%02x:00.0", 1 + device);
  return SUCCESS;
}
int cuGetErrorName(int error, const char **name) {
  *name = "error";
  return SUCCESS;
}
int cuGetErrorString(int error, const char **text) {
  *text = "error of the emulated GPU";
  return SUCCESS;
}
const char *cudaGetErrorName(int error) { return "error"; }
const char *cudaGetErrorString(int error) { return "error"; }

// Contexts: the handle is the number of the device, plus 1.

static __thread intptr_t current;

int cuDevicePrimaryCtxRetain(intptr_t *context, int device) {
  *context = 1 + device;
  return SUCCESS;
}
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  *flags = 0;
  return set(active, 1);
}
int cuCtxGetCurrent(intptr_t *context) {
  *context = current;
  return SUCCESS;
}
int cuCtxSetCurrent(intptr_t context) {
  current = context;
  return SUCCESS;
}
int cuCtxGetDevice(int *device) { return set(device, current ? current - 1 : 0); }
int cudaGetDevice(int *device) { return cuCtxGetDevice(device); }
int cudaSetDevice(int device) { return cuCtxSetCurrent(1 + device); }
int cuCtxGetApiVersion(intptr_t context, int *version) {
  return set(version, CUDA_VERSION);
}

// Memory

enum { HEAD = 4096 };  // an allocation begins with its size
static size_t taken;

static void *take(size_t size) {
  char *start = mmap(NULL, size + HEAD, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return NULL;
  *(size_t *)start = size + HEAD;
  return start + HEAD;
}

static void release(void *memory) {
  if (!memory) return;
  char *start = (char *)memory - HEAD;
  munmap(start, *(size_t *)start);
}

int cuMemGetInfo_v2(size_t *available, size_t *total) {
  *total = MEMORY;
  *available = MEMORY - taken / num_devices();
  return SUCCESS;
}
int cuMemAlloc_v2(void **memory, size_t size) {
  if (taken + size > MEMORY * num_devices()) return OUT_OF_MEMORY;
  report("allocate %zu\n", size);
  *memory = take(size);
  if (!*memory) return OUT_OF_MEMORY;
  __sync_fetch_and_add(&taken, size);
  return SUCCESS;
}
int cuMemFree_v2(void *memory) {
  if (memory) {
    size_t size = *(size_t *)((char *)memory - HEAD) - HEAD;
    __sync_fetch_and_sub(&taken, size);
  }
  release(memory);
  return SUCCESS;
}
int cuMemHostAlloc(void **memory, size_t size, unsigned flags) {
  *memory = take(size);
  return *memory ? SUCCESS : OUT_OF_MEMORY;
}
int cuMemFreeHost(void *memory) {
  release(memory);
  return SUCCESS;
}
int cuPointerGetAttribute(void *value, int attribute, address memory) {
  return set(value, attribute == 2 ? 2 : 0);  // its kind: of a device
}

// Larger copies and fills within the GPU would only take time of the host.
enum { SMALL = 4096 };

static int copy(const char *kind, void *to, const void *from, size_t size) {
  report("copy %s %zu\n", kind, size);
  if (size <= SMALL || strcmp(kind, "DtoD")) memmove(to, from, size);
  return SUCCESS;
}
int cuMemcpyDtoH_v2(void *to, void *from, size_t size) {
  if (size > 1) return copy("DtoH", to, from, size);
  report("copy DtoH 1\n");
  *(char *)to = 1;  // a bool, which no kernel has computed
  return SUCCESS;
}
int cuMemcpyDtoHAsync_v2(void *to, void *from, size_t size, void *stream) {
  return cuMemcpyDtoH_v2(to, from, size);
}
int cuMemcpyHtoD_v2(void *to, void *from, size_t size) {
  return copy("HtoD", to, from, size);
}
int cuMemcpyHtoDAsync_v2(void *to, void *from, size_t size, void *stream) {
  return copy("HtoD", to, from, size);
}
int cuMemcpyDtoD_v2(void *to, void *from, size_t size) {
  return copy("DtoD", to, from, size);
}
int cuMemcpyDtoDAsync_v2(void *to, void *from, size_t size, void *stream) {
  return copy("DtoD", to, from, size);
}
int cudaMemcpyAsync(void *to, void *from, size_t size, int kind, void *stream) {
  static const char *KINDS[] = {"HtoH", "HtoD", "DtoH", "DtoD", "any"};
  return copy(KINDS[kind], to, from, size);
}
static int fill(unsigned char *to, unsigned value, size_t width, size_t size) {
  report("fill %zu\n", size);
  for (size_t i = 0; i < size && size <= SMALL; i++)
    to[i] = value >> 8 * (i % width);
  return SUCCESS;
}
int cuMemsetD8_v2(void *to, unsigned char value, size_t size) {
  return fill(to, value, 1, size);
}
int cuMemsetD8Async(void *to, unsigned char value, size_t size) {
  return fill(to, value, 1, size);
}
int cuMemsetD32_v2(void *to, unsigned value, size_t count) {
  return fill(to, value, 4, 4 * count);
}
int cuMemsetD32Async(void *to, unsigned value, size_t count) {
  return fill(to, value, 4, 4 * count);
}
int cudaMemsetAsync(void *to, int value, size_t size) {
  return fill(to, value, 1, size);
}

// Streams and events

int cuStreamCreate(void **stream, unsigned flags) { return make(stream); }
int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
  return make(stream);
}
int cuStreamSynchronize(void *stream) {
  report("wait\n");
  return SUCCESS;
}
int cuCtxSynchronize(void) { return cuStreamSynchronize(NULL); }
int cuEventCreate(void **event, unsigned flags) { return make(event); }
int cuEventElapsedTime(float *milliseconds, void *start, void *end) {
  *milliseconds = 1;
  return SUCCESS;
}
int cuLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
  report("call of the host\n");
  function(data);
  return SUCCESS;
}

// Kernels of modules, which compilers have made for this machine: XLA, MLIR.
// A function is its name.

int cuModuleLoadData(void **module, const void *image) { return make(module); }
int cuModuleLoadDataEx(void **module, const void *image) { return make(module); }
int cuModuleLoadFatBinary(void **module, const void *image) {
  return make(module);
}
int cuModuleGetFunction(char **function, void *module, const char *name) {
  *function = strdup(name);
  return SUCCESS;
}
int cuModuleGetGlobal_v2(void **memory, size_t *size, void *module,
                         const char *name) {
  if (memory) *memory = take(1 << 20);
  if (size) *size = 1 << 20;
  return SUCCESS;
}
int cuFuncGetAttribute(int *value, int attribute, const char *function) {
  // Threads of a block, and registers of a thread.
  return set(value, attribute == 0 ? 1024 : attribute == 4 ? 32 : 0);
}
int cuLaunchKernel(const char *function) {
  report("kernel %s\n", function);
  return SUCCESS;
}
int cuLaunchKernelEx(const void *config, const char *function) {
  return cuLaunchKernel(function);
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count) {
  return set(count, 2);
}
int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count) {
  return set(count, 2);
}

// CUDA graphs: an array of functions, ended by 0.

enum { NODES = 4096 };

int cuGraphCreate(void **graph, unsigned flags) {
  *graph = calloc(NODES, sizeof(char *));
  return SUCCESS;
}
int cuGraphDestroy(void *graph) { return SUCCESS; }  // still has its instances
int cuGraphAddKernelNode_v2(void **node, const char **graph, const void *after,
                            size_t num_after, const char **parameters) {
  for (size_t i = 0; i < NODES - 1; i++)
    if (!graph[i]) {
      graph[i] = *parameters;  // the function comes first
      break;
    }
  return make(node);
}
int cuGraphInstantiate(void **instance, void *graph, unsigned long flags) {
  *instance = graph;
  return SUCCESS;
}
int cuGraphInstantiateWithFlags(void **instance, void *graph,
                                unsigned long flags) {
  return cuGraphInstantiate(instance, graph, flags);
}
int cuGraphLaunch(const char **instance, void *stream) {
  report("graph\n");
  for (; *instance; instance++) report("kernel of graph %s\n", *instance);
  return SUCCESS;
}

// Kernels of TensorFlow's libraries, which register them when they are loaded

static struct { const void *function; const char *name; } registered[1 << 16];

static int slot(const void *function) {
  unsigned i = (address)function >> 4;
  for (;; i++) {
    i %= sizeof registered / sizeof *registered;
    const void *found = registered[i].function;
    if (!found || found == function) return i;
  }
}
void *__cudaRegisterFatBinary(const void *binary) { return calloc(1, 256); }
void __cudaRegisterFunction(void *binary, const void *function, char *device,
                            const char *name) {
  pthread_mutex_lock(&lock);
  int i = slot(function);
  registered[i].name = name;
  registered[i].function = function;
  pthread_mutex_unlock(&lock);
}

static __thread struct { dim3 grid, block; size_t shared; void *stream; } pushed;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                     void *stream) {
  pushed.grid = grid;
  pushed.block = block;
  pushed.shared = shared;
  pushed.stream = stream;
  return SUCCESS;
}
int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared,
                               void **stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *stream = pushed.stream;
  return SUCCESS;
}
static const char *name_of(const void *function) {
  const char *name = registered[slot(function)].name;
  return name ? name : "unknown";
}

// The argument of a sum is Eigen's evaluator: the addresses of the result and of
// both numbers, and how many there are.
static void add_int64(const char *name, void **arguments) {
  static const char *SUM =
      "_ZN5Eigen8internal15EigenMetaKernelINS_15TensorEvaluatorIKNS_"
      "14TensorAssignOpINS_9TensorMapINS_6TensorIlLi1ELi1ElEELi16ENS_"
      "11MakePointerEEEKNS_19TensorCwiseBinaryOpINS0_13scalar_sum_op";
  if (strncmp(name, SUM, strlen(SUM))) return;
  int64_t **words = *arguments;
  if ((intptr_t)words[6] == 1) *words[0] = *words[5] + *words[8];
}
int cudaLaunchKernel(const void *function, dim3 grid, dim3 block,
                     void **arguments) {
  add_int64(name_of(function), arguments);
  return cuLaunchKernel(name_of(function));
}
int cudaLaunchKernelExC(const void *config, const void *function) {
  return cuLaunchKernel(name_of(function));
}
int cudaGetFuncBySymbol(const char **kernel, const void *function) {
  *kernel = name_of(function);
  return SUCCESS;
}
int cudaFuncGetAttributes(char *attributes, const void *function) {
  memset(attributes, 0, 144);
  *(int *)(attributes + 24) = 1024;  // threads of a block
  *(int *)(attributes + 28) = 32;    // registers
  *(int *)(attributes + 32) = 90;    // PTX
  *(int *)(attributes + 36) = 90;    // binary
  return SUCCESS;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count) {
  return set(count, 2);
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count) {
  return set(count, 2);
}
int cudaGetSymbolAddress(void **memory, const void *symbol) {
  *memory = take(1 << 20);
  return SUCCESS;
}

// cuBLAS, cuDNN and the others

#define HANDLE(name) int name(void **handle) { return make(handle); }
HANDLE(cublasCreate_v2)
HANDLE(cublasLtCreate)
HANDLE(cublasLtMatmulDescCreate)
HANDLE(cublasLtMatrixLayoutCreate)
HANDLE(cublasLtMatmulPreferenceCreate)
HANDLE(cudnnCreate)
HANDLE(cusolverDnCreate)
HANDLE(cusparseCreate)

#define PRODUCT(name) int name(void) { return cuLaunchKernel(#name); }
PRODUCT(cublasGemmEx)
PRODUCT(cublasGemmBatchedEx)
PRODUCT(cublasGemmStridedBatchedEx)
PRODUCT(cublasLtMatmul)
PRODUCT(cublasSgemm_v2)
PRODUCT(cublasSgemmEx)
PRODUCT(cublasSgemmBatched)
PRODUCT(cublasSgemmStridedBatched)
PRODUCT(cublasSgemv_v2)

static int version(int part, int *value, int major, int minor, int patch) {
  return set(value, part == 0 ? major : part == 1 ? minor : patch);
}
int cublasGetVersion_v2(void *handle, int *value) { return set(value, 120503); }
int cublasGetProperty(int part, int *value) {
  return version(part, value, 12, 5, 3);
}
size_t cublasLtGetVersion(void) { return 120503; }
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *op, void *a, void *b,
                                   void *c, void *d, void *preference, int most,
                                   void *results, int *count) {
  memset(results, 0, 104);  // the algorithm, no workspace, success
  return set(count, 1);
}
size_t cudnnGetVersion(void) { return 90501; }
int cudnnGetProperty(int part, int *value) {
  return version(part, value, 9, 5, 1);
}
int nvmlDeviceGetCount_v2(int *count) { return set(count, num_devices()); }

// NCCL

int cuDeviceCanAccessPeer(int *can, int device, int other) {
  return set(can, 1);
}
int ncclGetVersion(int *version) { return set(version, 22501); }
int ncclGetUniqueId(char *id) {
  static int count;  // each group of GPUs has its own
  memset(id, 0, 128);
  snprintf(id, 128, "%d %d", (int)getpid(), __sync_fetch_and_add(&count, 1));
  return SUCCESS;
}
int ncclCommInitRank(void **group) { return make(group); }
int ncclCommInitRankConfig(void **group) { return make(group); }
int ncclCommInitAll(void **groups, int count, const int *devices) {
  while (count--) make(groups++);
  return SUCCESS;
}
int ncclCommGetAsyncError(void *group, int *error) {
  return set(error, SUCCESS);
}
const char *ncclGetErrorString(int error) { return "error"; }
const char *ncclGetLastError(void *group) { return "error"; }

#define COLLECTIVE(name) int name(void) { return cuLaunchKernel(#name); }
COLLECTIVE(ncclAllGather)
COLLECTIVE(ncclAllReduce)
COLLECTIVE(ncclBroadcast)
COLLECTIVE(ncclReduce)
COLLECTIVE(ncclReduceScatter)
