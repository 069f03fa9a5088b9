// Stands in for the CUDA driver: it writes down what it is told, and refuses what it is told to refuse.
#include <string.h>
struct seen {
  long launches, pushes, pops;
  void *function, *stream, *context;
  unsigned shape[7];
  unsigned char block[64];
} seen;
static __thread void* current;
static int status, size;
int loads, asked, own, mode = 1;  // the mode of captures: loading code ends one unless it is 2, relaxed
void resize(int bytes) { size = bytes; }
void reset(void* context, int next) { memset(&seen, 0, sizeof(seen)); current = context; status = next; }
int cuCtxGetCurrent(void** context) { *context = current; return 0; }
int cuCtxPushCurrent_v2(void* context) { current = context; seen.pushes++; return 0; }
int cuCtxPopCurrent_v2(void** context) { *context = current; current = 0; seen.pops++; return 0; }
int cuGetErrorName(int error, const char** name) {
  *name = error == 201 ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES";
  return 0;
}
int cuGetErrorString(int error, const char** text) { *text = "in words"; return 0; }
int cuDriverGetVersion(int* version) { *version = 12080; return 0; }
int cuThreadExchangeStreamCaptureMode(int* other) {
  int before = mode;
  mode = *other, *other = before;
  return 0;
}
int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int* device, int index) { *device = 40 + index; return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) { *value = attribute == 75 ? 9 : 0; return 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) { *context = (void*)(0x7000L + device - 40); return 0; }
int cuLibraryLoadData(void** library, const char* code, int* o, void** v, unsigned n, int* p, void** w, unsigned m) {
  if (mode != 2) return 900;
  loads++;
  *library = (void*)0x100000001L;
  return strcmp(code, "broken") ? 0 : 200;
}
int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
  *kernel = (void*)0x200000001L;
  return library == (void*)0x100000001L && !strcmp(name, "f__plain") ? 0 : 500;
}
int cuKernelGetFunction(void** function, void* kernel) {
  *function = (void*)0x300000001L;
  return current && kernel == (void*)0x200000001L ? 0 : 201;
}
int cuFuncGetParamInfo(void* function, size_t index, size_t* offset, size_t* bytes) {
  *offset = 0, *bytes = 48;
  return function == (void*)0x300000001L && index == 0 ? 0 : 1;
}
int cuFuncGetAttribute(int* value, int attribute, void* function) {
  *value = attribute == 1 ? own : 0;
  return function == (void*)0x300000001L ? 0 : 1;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  if (attribute == 8) asked = value;
  return value > 200000;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void* stream, void** parameters, void** extra) {
  unsigned shape[7] = {gx, gy, gz, bx, by, bz, shared};
  if (!current) return 201;
  seen.launches++, seen.function = function, seen.stream = stream, seen.context = current;
  memcpy(seen.shape, shape, sizeof(shape)), memcpy(seen.block, parameters[0], size);
  return status;
}
