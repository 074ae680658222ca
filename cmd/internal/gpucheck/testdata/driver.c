// What stands in for NVIDIA's management library (libnvidia-ml.so.1): one GPU, and the functions that workers/device
// calls of an older driver. Every answer is 0 (well) or 3 (not supported).
#include <string.h>

typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { char legacy[16]; unsigned domain, bus, device, kind, subsystem; char place[32]; } pci;

int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *to, unsigned n) { strncpy(to, "535.1", n); return 0; }
int nvmlSystemGetCudaDriverVersion(int *to) { *to = 12020; return 0; }
int nvmlDeviceGetCount_v2(unsigned *to) { *to = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **to) { *to = (void *)1; return 0; }
int nvmlDeviceGetUUID(void *device, char *to, unsigned n) { strncpy(to, "GPU-12345678", n); return 0; }
int nvmlDeviceGetName(void *device, char *to, unsigned n) { strncpy(to, "NVIDIA T4", n); return 0; }
int nvmlDeviceGetMinorNumber(void *device, unsigned *to) { *to = 0; return 0; }
int nvmlDeviceGetPciInfo_v3(void *device, pci *to) { strncpy(to->place, "00000000:3B:00.0", sizeof to->place); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { *major = 7; *minor = 5; return 0; }
int nvmlDeviceGetMemoryInfo(void *device, memory *to) {
	to->total = 15ull << 30, to->free = 14ull << 30, to->used = 1ull << 30;
	return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, utilization *to) { to->gpu = 25; return 0; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *to) { *to = 30000; return 0; }
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *to) { return 3; }
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *to) { *count = 0; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count, void *to) { *count = 0; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *to) { *count = 0; return 0; }
int nvmlDeviceGetAccountingMode(void *device, int *mode) { return 3; }
