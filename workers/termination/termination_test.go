package termination_test

import (
	"context"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/termination"
)

const (
	torchTraceback = `Epoch 3: 100%|##########| 10/10
Traceback (most recent call last):
  File "/work/train.py", line 41, in <module>
    loss = model(batch)
           ^^^^^^^^^^^^
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 125, in forward
    return F.linear(input, self.weight, self.bias)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of ` +
		`79.15 GiB of which 17.25 MiB is free. Process 1 has 79.12 GiB memory in use.
`
	valueError = `Traceback (most recent call last):
  File "/work/train.py", line 12, in <module>
    raise ValueError("no such column: label")
ValueError: no such column: label
`
	torchrun = `E1121 12:00:00 elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 0 (pid: 12)` +
		` of binary: /usr/bin/python3
Traceback (most recent call last):
  File "/usr/local/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 264, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
`
)

func TestWordsTellWhichMemoryWasRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		tail  string
		want  termination.Memory
		asked quantity.Bytes
	}{
		{"nothing", "", termination.None, 0},
		{"a log", "step 1\nstep 2\n", termination.None, 0},

		{"PyTorch 2.5", torchTraceback, termination.Device, 20 * quantity.MiB},
		{
			"PyTorch 2.0", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 14.76 GiB " +
				"total capacity; 11.43 GiB already allocated; 1.52 GiB free; 12.09 GiB reserved in total by PyTorch)",
			termination.Device, 2 * quantity.GiB,
		},
		{
			"PyTorch 1", "RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 7.93 GiB total capacity)",
			termination.Device, 1536 * quantity.MiB,
		},
		{"PyTorch on AMD", "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total " +
			"capacity of 63.98 GiB", termination.Device, 256 * quantity.MiB},
		{"PyTorch on Apple", "RuntimeError: MPS backend out of memory (MPS allocated: 17.80 GB, other allocations: 384.00 " +
			"KB, max allowed: 18.13 GB). Tried to allocate 500.00 MB on private pool.", termination.Device, 500 * quantity.MiB},
		{"CUDA", "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some " +
			"other API call", termination.Device, 0},
		{
			"cuBLAS", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
			termination.Device, 0,
		},
		{"cuDNN", "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", termination.Device, 0},
		{"the CUDA driver", "could not create context: CUDA_ERROR_OUT_OF_MEMORY: out of memory", termination.Device, 0},
		{"CuPy", "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 4,000,000,000 bytes (allocated so " +
			"far: 0 bytes).", termination.Device, 4000000000},
		{"llama.cpp", "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 0: cudaMalloc failed: " +
			"out of memory", termination.Device, 4 * quantity.GiB},
		{"JAX", "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate " +
			"17179869184 bytes.", termination.Device, 16 * quantity.GiB},
		{
			"JAX 0.5", "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 4294967296 bytes.",
			termination.Device, 4 * quantity.GiB,
		},
		{
			"TensorFlow", "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with " +
				"shape[4096,4096] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc " +
				"[Op:MatMul]",
			termination.Device, 0,
		},
		{"TensorFlow on the host", "ResourceExhaustedError: OOM when allocating tensor with shape[99999,99999] and type " +
			"float on /job:localhost/replica:0/task:0/device:CPU:0 by allocator mklcpu [Op:Fill]", termination.Host, 0},
		{"TensorFlow goes on", "W tensorflow/core/common_runtime/bfc_allocator.cc:312] Allocator (GPU_0_bfc) ran out of " +
			"memory trying to allocate 2.00GiB with freed_by_count=0. The caller indicates that this is not a failure, but " +
			"this may mean that there could be performance gains if more memory were available.", termination.None, 0},
		{"a quota of gRPC", "grpc._channel._InactiveRpcError: status = StatusCode.RESOURCE_EXHAUSTED details = \"Received " +
			"message larger than max (5000000 vs. 4194304)\"", termination.None, 0},

		{
			"Python", "Traceback (most recent call last):\n  File \"<string>\", line 1, in <module>\nMemoryError\n",
			termination.Host, 0,
		},
		{"NumPy", "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array with shape " +
			"(1000000000,) and data type float64", termination.Host, 7999376588},
		{
			"NumPy 1", "numpy.core._exceptions.MemoryError: Unable to allocate 512. MiB for an array", termination.Host,
			512 * quantity.MiB,
		},
		{"a class of the user's", "GPUMemoryErrorHandler: installed", termination.None, 0},
		{
			"PyTorch on the host", "RuntimeError: [enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't " +
				"allocate memory: you tried to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)",
			termination.Host, 4000000000000,
		},
		{"Python, errno 12", "OSError: [Errno 12] Cannot allocate memory", termination.Host, 0},
		{"a shell", "sh: 1: Cannot fork\nbash: fork: Cannot allocate memory", termination.Host, 0},
		{
			"C++", "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
			termination.Host, 0,
		},
		{
			"RAPIDS", "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /rmm/mr/device/cuda_memory_resource.hpp",
			termination.Device, 0,
		},
		{
			"Java", "Exception in thread \"main\" java.lang.OutOfMemoryError: Java heap space\n\tat Main.main(Main.java:5)",
			termination.Host, 0,
		},
		{
			"the JVM", "# There is insufficient memory for the Java Runtime Environment to continue.\n# Native memory " +
				"allocation (mmap) failed to map 2147483648 bytes for committing reserved memory.", termination.Host,
			2 * quantity.GiB,
		},
		{"Go", "runtime: out of memory: cannot allocate 4194304-byte block (3217031168 in use)\nfatal error: out of " +
			"memory\n\nruntime stack:\n", termination.Host, 4 * quantity.MiB},
		{"Go's mmap", "fatal error: runtime: cannot allocate memory\n\nruntime stack:", termination.Host, 0},
		{"Rust", "memory allocation of 8589934592 bytes failed", termination.Host, 8 * quantity.GiB},
		{"Node", "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory", termination.Host, 0},
		{"R", "Error: cannot allocate vector of size 7.5 Gb\nExecution halted", termination.Host, 7680 * quantity.MiB},
		{"Arrow", "pyarrow.lib.ArrowMemoryError: malloc of size 1073741824 failed", termination.Host, quantity.GiB},

		{"it recovered and died of another error", torchTraceback + valueError, termination.None, 0},
		{
			"it said that it tries again", "CUDA out of memory, retrying with batch size 8\nloss 0.3\nSegmentation fault",
			termination.None, 0,
		},
		{"a launcher reports the death of its process", torchTraceback + torchrun, termination.Device, 20 * quantity.MiB},
		{
			"it failed while it handled it", strings.TrimSuffix(torchTraceback, "\n") +
				"\n\nDuring handling of the above exception, another exception occurred:\n\n" + valueError, termination.Device,
			20 * quantity.MiB,
		},
		{
			"it happened while another error was handled",
			valueError + "\nDuring handling of the above exception, another exception occurred:\n\n" + torchTraceback,
			termination.Device, 20 * quantity.MiB,
		},
		{
			"with log lines after it", torchTraceback + "wandb: run ended\nwandb: synced 5 files\n", termination.Device,
			20 * quantity.MiB,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, detail := termination.Text(tt.tail)
			if got != tt.want || detail.Asked != tt.asked || (got == termination.None) != (detail.Line == "") {
				t.Errorf("got %q and %+v, want %q and %d bytes", got, detail, tt.want, tt.asked)
			}
		})
	}
}

func TestAllEvidenceIsWeighed(t *testing.T) {
	t.Parallel()
	jax := "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 1024 bytes."
	for _, tt := range []struct {
		name     string
		evidence termination.Evidence
		want     termination.Cause
		says     string
	}{
		{"it ended well, whatever it said", termination.Evidence{
			Tail: torchTraceback, KernelKill: true,
			Reported: termination.Host,
		}, termination.Succeeded, ""},
		{
			"a plain failure",
			termination.Evidence{Code: 2, Tail: "usage: train [--lr X]\n"},
			termination.Failed,
			"exit code 2: usage: train [--lr X]",
		},
		{"without a word", termination.Evidence{Code: 1}, termination.Failed, "exit code 1"},
		{
			"a traceback",
			termination.Evidence{Code: 1, Tail: "log\n" + valueError + "bye\n"},
			termination.Failed,
			"exit code 1: ValueError: no such column: label",
		},
		{
			"a panic",
			termination.Evidence{Code: 2, Tail: "log\npanic: index out of range\n\ngoroutine 1 [running]:\n"},
			termination.Failed, "exit code 2: panic: index out of range",
		},
		{
			"not found",
			termination.Evidence{Code: 127, Tail: "sh: 1: foo: not found"},
			termination.Failed,
			"exit code 127 (command not found): sh: 1: foo: not found",
		},
		{"not executable", termination.Evidence{Code: 126}, termination.Failed, "cannot be executed"},
		{
			"a container that does not start",
			termination.Evidence{Code: 125, Container: true, Tail: "docker: no such image"},
			termination.Failed, "could not start it",
		},
		{"125 without a container", termination.Evidence{Code: 125}, termination.Failed, "exit code 125"},
		{"137 is no proof", termination.Evidence{Code: 137}, termination.Failed, "SIGKILL"},
		{
			"SIGKILL is no proof",
			termination.Evidence{Signal: syscall.SIGKILL},
			termination.Signalled,
			"killed by SIGKILL (killed)",
		},
		{
			"SIGSEGV",
			termination.Evidence{Signal: syscall.SIGSEGV},
			termination.Signalled,
			"killed by SIGSEGV (segmentation fault)",
		},
		{
			"the kernel killed it",
			termination.Evidence{Signal: syscall.SIGKILL, KernelKill: true},
			termination.HostMemory,
			"the kernel killed",
		},
		{
			"the kernel killed a process of it",
			termination.Evidence{
				Code: 1, KernelKill: true,
				Tail: "RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed.",
			},
			termination.HostMemory,
			"DataLoader worker",
		},
		{
			"it reported host memory",
			termination.Evidence{Code: 3, Reported: termination.Host},
			termination.HostMemory,
			"refused memory",
		},
		{
			"it reported device memory",
			termination.Evidence{Code: 3, Reported: termination.Device, Tail: "MemoryError"},
			termination.DeviceMemory, "device",
		},
		{
			"it said device memory",
			termination.Evidence{Code: 1, Tail: torchTraceback},
			termination.DeviceMemory,
			"Tried to allocate 20.00 MiB",
		},
		{"it said host memory, and was aborted", termination.Evidence{
			Signal: syscall.SIGABRT,
			Tail:   "what():  std::bad_alloc",
		}, termination.HostMemory, "SIGABRT"},
		{
			"XLA with a device",
			termination.Evidence{Code: 1, Tail: jax, HasDevice: true},
			termination.DeviceMemory,
			"1024 bytes",
		},
		{"XLA without", termination.Evidence{Code: 1, Tail: jax}, termination.HostMemory, "1024 bytes"},
		{
			"we stopped it",
			termination.Evidence{Signal: syscall.SIGTERM, Stopped: true, Tail: "MemoryError"},
			termination.Stopped, "killed by SIGTERM",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := termination.Classify(tt.evidence)
			if got.Cause != tt.want || !strings.Contains(got.Message, tt.says) ||
				(got.Cause == termination.Succeeded) != (got.Message == "") {
				t.Errorf("got %q: %q, want %q that says %q", got.Cause, got.Message, tt.want, tt.says)
			}
		})
	}
}

func TestTheFinalMessageIsThatOfTheException(t *testing.T) {
	t.Parallel()
	message, stack := termination.FinalMessage("log\n" + valueError + "wandb: bye\n")
	if diff := cmp.Diff("ValueError: no such column: label", message); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
	if !strings.HasPrefix(stack, "Traceback") {
		t.Errorf("stack: got %q, want the traceback", stack)
	}
	message, stack = termination.FinalMessage("one\ntwo  \n\n")
	if message != "two" || stack != "" {
		t.Errorf("got %q, %q, want the last line", message, stack)
	}
}

func TestAStatusIsThatOfTheProcess(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		script string
		code   int
		signal syscall.Signal
	}{{"exit 0", 0, 0}, {"exit 7", 7, 0}, {"kill -SEGV $$", 0, syscall.SIGSEGV}} {
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "sh", "-c", tt.script)
		_ = cmd.Run() // its state is the result
		if code, signal := termination.Status(cmd.ProcessState); code != tt.code || signal != tt.signal {
			t.Errorf("%s: got %d, %v, want %d, %v", tt.script, code, signal, tt.code, tt.signal)
		}
	}
}

func TestMoreOutputBeforeTheFinalMessageChangesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		before := rapid.StringMatching(`([a-z ]{0,20}\n){0,5}`).Draw(r, "before")
		last := rapid.SampledFrom([]string{
			torchTraceback, valueError, "MemoryError\n", torchTraceback + valueError,
			"panic: x\n",
		}).Draw(r, "last")
		alone := termination.Classify(termination.Evidence{Code: 1, Tail: last})
		if diff := cmp.Diff(alone, termination.Classify(termination.Evidence{Code: 1, Tail: before + last})); diff != "" {
			r.Errorf("termination (-without +with %q):\n%s", before, diff)
		}
	})
}

func FuzzClassify(f *testing.F) {
	for _, tail := range []string{
		torchTraceback, valueError, torchrun, "panic: ",
		"Tried to allocate 1e999 GiB CUDA out of memory", "CUDA out of memory. Tried to allocate 99999999999999999999 TiB",
	} {
		f.Add(1, 0, tail)
	}
	f.Fuzz(func(t *testing.T, code, signal int, tail string) {
		got := termination.Classify(termination.Evidence{Code: code, Signal: syscall.Signal(signal), Tail: tail})
		if got.Asked < 0 || (got.Cause == termination.Succeeded) != (code == 0 && signal == 0) ||
			(got.Cause != termination.Succeeded && got.Message == "") {
			t.Errorf("code %d, signal %d, tail %q: got %+v", code, signal, tail, got)
		}
	})
}
