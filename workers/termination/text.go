// Package termination tells why a process ended, from its exit status, the end of its output and what the kernel saw.
package termination

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Memory says which memory a process was refused.
type Memory string

// Kinds of memory.
const (
	// None says that nothing tells of refused memory.
	None Memory = ""
	// Host is the machine's memory, or the limit of the process's group.
	Host Memory = "host"
	// Device is the memory of a GPU or another accelerator.
	Device Memory = "device"
)

// Detail is what a text says about refused memory.
type Detail struct {
	// Line is the line that says it, without surrounding spaces.
	Line string
	// Asked is how much was asked for in the request that was refused; 0 when the line does not tell.
	Asked quantity.Bytes
	// EitherMemory says that the words are used for both kinds: XLA says the same whether a device or the host refuses.
	EitherMemory bool
}

// sign is how a program or its runtime says that memory was refused.
type sign struct {
	words  string // the line contains them
	kind   Memory
	either bool
}

// signs are looked for in this order, as the words of some contain those of others: a device's first. They are taken
// from the sources of the runtimes named.
var signs = []sign{
	// PyTorch: c10/cuda/CUDACachingAllocator.cpp, and its siblings for AMD, Apple and Intel.
	{words: "CUDA out of memory", kind: Device},
	{words: "HIP out of memory", kind: Device},
	{words: "MPS backend out of memory", kind: Device},
	{words: "XPU out of memory", kind: Device},
	{words: "torch.cuda.OutOfMemoryError", kind: Device},
	{words: "torch.OutOfMemoryError", kind: Device},
	// CUDA and its libraries: cudaGetErrorString, cuGetErrorName, cublasStatus_t, cudnnStatus_t. HIP copies the names.
	{words: "CUDA error: out of memory", kind: Device},
	{words: "HIP error: out of memory", kind: Device},
	{words: "cudaErrorMemoryAllocation", kind: Device},
	{words: "hipErrorOutOfMemory", kind: Device},
	{words: "CUDA_ERROR_OUT_OF_MEMORY", kind: Device},
	{words: "CUBLAS_STATUS_ALLOC_FAILED", kind: Device},
	{words: "CUSOLVER_STATUS_ALLOC_FAILED", kind: Device},
	{words: "CUSPARSE_STATUS_ALLOC_FAILED", kind: Device},
	{words: "CUDNN_STATUS_ALLOC_FAILED", kind: Device},
	{words: "CUFFT_ALLOC_FAILED", kind: Device},
	{words: "cudaMalloc failed: out of memory", kind: Device}, // ggml
	{words: "cudaErrorOutOfMemory", kind: Device},
	{words: "cupy.cuda.memory.OutOfMemoryError", kind: Device},
	{words: "std::bad_alloc: out_of_memory: CUDA", kind: Device}, // RAPIDS memory manager
	{words: "No available memory for the cache blocks", kind: Device},
	{words: "NVRM: Out of memory", kind: Device},
	// XLA (JAX, TensorFlow) says it as a status; gRPC uses the same status for quotas, so the status alone is no sign.
	{words: "RESOURCE_EXHAUSTED: Out of memory", kind: Device, either: true},
	{words: "RESOURCE_EXHAUSTED: Failed to allocate request", kind: Device, either: true},
	{words: "OOM when allocating tensor", kind: Device, either: true},
	{words: "RESOURCE_EXHAUSTED: OOM", kind: Device, either: true},
	// PyTorch on the host: c10/core/impl/alloc_cpu.cpp.
	{words: "DefaultCPUAllocator: can't allocate memory", kind: Host},
	{words: "DefaultCPUAllocator: not enough memory", kind: Host},
	// errno 12, as the C library, Go, Rust and Python say it.
	{words: "Cannot allocate memory", kind: Host},
	{words: "cannot allocate memory", kind: Host},
	{words: "fatal error: out of memory", kind: Host}, // Go's runtime
	{words: "fatal error: runtime: out of memory", kind: Host},
	{words: "runtime: out of memory: cannot allocate", kind: Host},
	{words: "std::bad_alloc", kind: Host},
	{words: "java.lang.OutOfMemoryError", kind: Host},
	{words: "There is insufficient memory for the Java Runtime Environment", kind: Host},
	{words: "JavaScript heap out of memory", kind: Host},
	{words: "ArrowMemoryError", kind: Host},
	{words: "cannot allocate vector of size", kind: Host}, // R
	{words: "OutOfMemoryError()", kind: Host},             // Julia
	{words: "virtual memory exhausted", kind: Host},       // GNU xmalloc
}

// Lines that have no fixed words.
var (
	// Python's exception, alone, with a message, or that of NumPy, which derives from it.
	pythonMemory = regexp.MustCompile(`^(?:[\w.]*\.)?_?(?:Array)?MemoryError(?::|$)`)
	// Rust's alloc::alloc::handle_alloc_error.
	rustMemory = regexp.MustCompile(`^memory allocation of (\d+) bytes failed`)
	// What TensorFlow adds to a tensor that did not fit: which device refused it.
	hostAllocator = regexp.MustCompile(`device:CPU:\d+|by allocator (?:mkl)?cpu\b`)
)

// harmless are lines that tell of refused memory and that their author went on.
var harmless = []string{
	"The caller indicates that this is not a failure", // TensorFlow tries with less
	"retry", "Retry", "reducing batch", "Reducing batch", "falling back", "Falling back",
}

// request finds the amount in what was refused.
var request = regexp.MustCompile(`(?i:tried to allocate|trying to allocate|out of memory allocating|unable to ` +
	`allocate|allocation of|allocate request for|` +
	`failed to map|failed to allocate|cannot allocate vector of size|cannot allocate|malloc of size|you tried to ` +
	`allocate|allocating)\s+` +
	`(\d[\d,]*(?:\.\d*)?)\s*-?\s*(bytes?|[KMGT]i?[Bb])?`)

// Text looks for words that tell of refused memory in the last of a process's output, and returns what the last of them
// say.
//
// Words are no sign when the program went on to die of something else: when a later Python traceback ends with another
// exception that does not stand for the first. Nor are words that their author follows with another try. A sign that
// stays may still be wrong, as anybody can print such words; the cost is one attempt with more memory.
func Text(tail string) (Memory, Detail) {
	lines := strings.Split(tail, "\n")
	for i, line := range slices.Backward(lines) {
		line = strings.TrimSpace(line)
		kind, either := classify(line)
		if kind == None {
			continue
		}
		if diedLater(lines[i+1:]) {
			return None, Detail{}
		}
		// Some say how much on the line before or after.
		asked := max(amount(line), amount(strings.Join(lines[max(i-1, 0):min(i+2, len(lines))], "\n")))
		return kind, Detail{Line: line, Asked: asked, EitherMemory: either}
	}
	return None, Detail{}
}

// classify looks for a sign in one line.
func classify(line string) (kind Memory, either bool) {
	for _, words := range harmless {
		if strings.Contains(line, words) {
			return None, false
		}
	}
	for _, s := range signs {
		if !strings.Contains(line, s.words) {
			continue
		}
		if s.either && hostAllocator.MatchString(line) {
			return Host, false
		}
		return s.kind, s.either
	}
	if pythonMemory.MatchString(line) || rustMemory.MatchString(line) {
		return Host, false
	}
	return None, false
}

// exception is the last line of a Python traceback: a class, and most often words.
var exception = regexp.MustCompile(`^((?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt|Warning|Failure))(?::|$)`)

// diedLater reports whether a traceback in these lines ends with an exception of its own. One that was raised while the
// first was handled, or that a launcher of processes raises because one of them failed, stands for the first.
func diedLater(lines []string) bool {
	began, chained := false, false
	for _, line := range lines {
		switch {
		case strings.HasPrefix(line, "During handling of the above exception") ||
			strings.HasPrefix(line, "The above exception was the direct cause"):
			chained = true
		case strings.HasPrefix(line, "Traceback (most recent call last):"):
			began = !chained
			chained = false
		case began && exception.MatchString(line):
			if !launcher(line) {
				return true
			}
			began = false
		}
	}
	return false
}

// launcher reports whether an exception says only that another process failed.
func launcher(line string) bool {
	for _, words := range []string{
		"ChildFailedError", "ProcessExitedException", "ProcessRaisedException",
		"CalledProcessError", "BrokenProcessPool",
	} {
		if strings.Contains(line, words) {
			return true
		}
	}
	return false
}

// amount reads how much was asked for; 0 when the line does not tell. Units without an "i" are binary as well: that is
// how allocators use them.
func amount(line string) quantity.Bytes {
	var match []string
	for _, found := range request.FindAllStringSubmatch(line, -1) {
		if found[2] != "" { // a number without a unit may be anything else
			match = found
			break
		}
		if strings.Contains(found[0], "malloc of size") {
			match = found
		}
	}
	if match == nil {
		return 0
	}
	number, err := strconv.ParseFloat(strings.ReplaceAll(match[1], ",", ""), 64)
	if err != nil {
		return 0
	}
	unit := 1.0
	if match[2] != "" {
		unit = map[byte]float64{'k': 1 << 10, 'm': 1 << 20, 'g': 1 << 30, 't': 1 << 40, 'b': 1}[match[2][0]|0x20]
	}
	bytes := number * unit
	if bytes >= math.MaxInt64 {
		return 0
	}
	return quantity.Bytes(bytes)
}
