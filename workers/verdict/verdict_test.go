package verdict_test

import (
	"context"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/verdict"
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
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.15 GiB of which 17.25 MiB is free. Process 1 has 79.12 GiB memory in use.
`
	valueError = `Traceback (most recent call last):
  File "/work/train.py", line 12, in <module>
    raise ValueError("no such column: label")
ValueError: no such column: label
`
	torchrun = `E1121 12:00:00 elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 0 (pid: 12) of binary: /usr/bin/python3
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
		want  verdict.Memory
		asked quantity.Bytes
	}{
		{"nothing", "", verdict.None, 0},
		{"a log", "step 1\nstep 2\n", verdict.None, 0},

		{"PyTorch 2.5", torchTraceback, verdict.Device, 20 * quantity.MiB},
		{"PyTorch 2.0", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 14.76 GiB total capacity; 11.43 GiB already allocated; 1.52 GiB free; 12.09 GiB reserved in total by PyTorch)", verdict.Device, 2 * quantity.GiB},
		{"PyTorch 1", "RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 7.93 GiB total capacity)", verdict.Device, 1536 * quantity.MiB},
		{"PyTorch on AMD", "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 63.98 GiB", verdict.Device, 256 * quantity.MiB},
		{"PyTorch on Apple", "RuntimeError: MPS backend out of memory (MPS allocated: 17.80 GB, other allocations: 384.00 KB, max allowed: 18.13 GB). Tried to allocate 500.00 MB on private pool.", verdict.Device, 500 * quantity.MiB},
		{"CUDA", "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call", verdict.Device, 0},
		{"cuBLAS", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", verdict.Device, 0},
		{"cuDNN", "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", verdict.Device, 0},
		{"the CUDA driver", "could not create context: CUDA_ERROR_OUT_OF_MEMORY: out of memory", verdict.Device, 0},
		{"CuPy", "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 4,000,000,000 bytes (allocated so far: 0 bytes).", verdict.Device, 4000000000},
		{"llama.cpp", "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 0: cudaMalloc failed: out of memory", verdict.Device, 4 * quantity.GiB},
		{"JAX", "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.", verdict.Device, 16 * quantity.GiB},
		{"JAX 0.5", "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 4294967296 bytes.", verdict.Device, 4 * quantity.GiB},
		{"TensorFlow", "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[4096,4096] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:MatMul]", verdict.Device, 0},
		{"TensorFlow on the host", "ResourceExhaustedError: OOM when allocating tensor with shape[99999,99999] and type float on /job:localhost/replica:0/task:0/device:CPU:0 by allocator mklcpu [Op:Fill]", verdict.Host, 0},
		{"TensorFlow goes on", "W tensorflow/core/common_runtime/bfc_allocator.cc:312] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB with freed_by_count=0. The caller indicates that this is not a failure, but this may mean that there could be performance gains if more memory were available.", verdict.None, 0},
		{"a quota of gRPC", "grpc._channel._InactiveRpcError: status = StatusCode.RESOURCE_EXHAUSTED details = \"Received message larger than max (5000000 vs. 4194304)\"", verdict.None, 0},

		{"Python", "Traceback (most recent call last):\n  File \"<string>\", line 1, in <module>\nMemoryError\n", verdict.Host, 0},
		{"NumPy", "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array with shape (1000000000,) and data type float64", verdict.Host, 7999376588},
		{"NumPy 1", "numpy.core._exceptions.MemoryError: Unable to allocate 512. MiB for an array", verdict.Host, 512 * quantity.MiB},
		{"a class of the user's", "GPUMemoryErrorHandler: installed", verdict.None, 0},
		{"PyTorch on the host", "RuntimeError: [enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)", verdict.Host, 4000000000000},
		{"Python, errno 12", "OSError: [Errno 12] Cannot allocate memory", verdict.Host, 0},
		{"a shell", "sh: 1: Cannot fork\nbash: fork: Cannot allocate memory", verdict.Host, 0},
		{"C++", "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc", verdict.Host, 0},
		{"RAPIDS", "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /rmm/mr/device/cuda_memory_resource.hpp", verdict.Device, 0},
		{"Java", "Exception in thread \"main\" java.lang.OutOfMemoryError: Java heap space\n\tat Main.main(Main.java:5)", verdict.Host, 0},
		{"the JVM", "# There is insufficient memory for the Java Runtime Environment to continue.\n# Native memory allocation (mmap) failed to map 2147483648 bytes for committing reserved memory.", verdict.Host, 2 * quantity.GiB},
		{"Go", "runtime: out of memory: cannot allocate 4194304-byte block (3217031168 in use)\nfatal error: out of memory\n\nruntime stack:\n", verdict.Host, 4 * quantity.MiB},
		{"Go's mmap", "fatal error: runtime: cannot allocate memory\n\nruntime stack:", verdict.Host, 0},
		{"Rust", "memory allocation of 8589934592 bytes failed", verdict.Host, 8 * quantity.GiB},
		{"Node", "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory", verdict.Host, 0},
		{"R", "Error: cannot allocate vector of size 7.5 Gb\nExecution halted", verdict.Host, 7680 * quantity.MiB},
		{"Arrow", "pyarrow.lib.ArrowMemoryError: malloc of size 1073741824 failed", verdict.Host, quantity.GiB},

		{"it recovered and died of another error", torchTraceback + valueError, verdict.None, 0},
		{"it said that it tries again", "CUDA out of memory, retrying with batch size 8\nloss 0.3\nSegmentation fault", verdict.None, 0},
		{"a launcher reports the death of its process", torchTraceback + torchrun, verdict.Device, 20 * quantity.MiB},
		{"it failed while it handled it", strings.TrimSuffix(torchTraceback, "\n") + "\n\nDuring handling of the above exception, another exception occurred:\n\n" + valueError, verdict.Device, 20 * quantity.MiB},
		{"it happened while another error was handled", valueError + "\nDuring handling of the above exception, another exception occurred:\n\n" + torchTraceback, verdict.Device, 20 * quantity.MiB},
		{"with log lines after it", torchTraceback + "wandb: run ended\nwandb: synced 5 files\n", verdict.Device, 20 * quantity.MiB},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, detail := verdict.Text(tt.tail)
			if got != tt.want || detail.Asked != tt.asked || (got == verdict.None) != (detail.Line == "") {
				t.Errorf("got %q and %+v, want %q and %d bytes", got, detail, tt.want, tt.asked)
			}
		})
	}
}

func TestTheVerdictWeighsTheEvidence(t *testing.T) {
	t.Parallel()
	jax := "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 1024 bytes."
	for _, tt := range []struct {
		name     string
		evidence verdict.Evidence
		want     verdict.Cause
		says     string
	}{
		{"it ended well, whatever it said", verdict.Evidence{Tail: torchTraceback, KernelKill: true, Reported: verdict.Host}, verdict.Succeeded, ""},
		{"a plain failure", verdict.Evidence{Code: 2, Tail: "usage: train [--lr X]\n"}, verdict.Failed, "exit code 2: usage: train [--lr X]"},
		{"without a word", verdict.Evidence{Code: 1}, verdict.Failed, "exit code 1"},
		{"a traceback", verdict.Evidence{Code: 1, Tail: "log\n" + valueError + "bye\n"}, verdict.Failed, "exit code 1: ValueError: no such column: label"},
		{"a panic", verdict.Evidence{Code: 2, Tail: "log\npanic: index out of range\n\ngoroutine 1 [running]:\n"}, verdict.Failed, "exit code 2: panic: index out of range"},
		{"not found", verdict.Evidence{Code: 127, Tail: "sh: 1: foo: not found"}, verdict.Failed, "exit code 127 (command not found): sh: 1: foo: not found"},
		{"not executable", verdict.Evidence{Code: 126}, verdict.Failed, "cannot be executed"},
		{"a container that does not start", verdict.Evidence{Code: 125, Container: true, Tail: "docker: no such image"}, verdict.Failed, "could not start it"},
		{"125 without a container", verdict.Evidence{Code: 125}, verdict.Failed, "exit code 125"},
		{"137 is no proof", verdict.Evidence{Code: 137}, verdict.Failed, "SIGKILL"},
		{"SIGKILL is no proof", verdict.Evidence{Signal: syscall.SIGKILL}, verdict.Signalled, "killed by SIGKILL, killed"},
		{"SIGSEGV", verdict.Evidence{Signal: syscall.SIGSEGV}, verdict.Signalled, "killed by SIGSEGV, segmentation fault"},
		{"the kernel killed it", verdict.Evidence{Signal: syscall.SIGKILL, KernelKill: true}, verdict.HostMemory, "the kernel killed"},
		{"the kernel killed a process of it", verdict.Evidence{Code: 1, KernelKill: true, Tail: "RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed."}, verdict.HostMemory, "DataLoader worker"},
		{"it reported host memory", verdict.Evidence{Code: 3, Reported: verdict.Host}, verdict.HostMemory, "refused memory"},
		{"it reported device memory", verdict.Evidence{Code: 3, Reported: verdict.Device, Tail: "MemoryError"}, verdict.DeviceMemory, "device"},
		{"it said device memory", verdict.Evidence{Code: 1, Tail: torchTraceback}, verdict.DeviceMemory, "Tried to allocate 20.00 MiB"},
		{"it said host memory, and was aborted", verdict.Evidence{Signal: syscall.SIGABRT, Tail: "what():  std::bad_alloc"}, verdict.HostMemory, "SIGABRT"},
		{"XLA with a device", verdict.Evidence{Code: 1, Tail: jax, HasDevice: true}, verdict.DeviceMemory, "1024 bytes"},
		{"XLA without", verdict.Evidence{Code: 1, Tail: jax}, verdict.HostMemory, "1024 bytes"},
		{"we stopped it", verdict.Evidence{Signal: syscall.SIGTERM, Stopped: true, Tail: "MemoryError"}, verdict.Stopped, "killed by SIGTERM"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := verdict.Judge(tt.evidence)
			if got.Cause != tt.want || !strings.Contains(got.Message, tt.says) || (got.Cause == verdict.Succeeded) != (got.Message == "") {
				t.Errorf("got %q: %q, want %q that says %q", got.Cause, got.Message, tt.want, tt.says)
			}
		})
	}
}

func TestTheLastWordsAreThoseOfTheException(t *testing.T) {
	t.Parallel()
	message, stack := verdict.LastWords("log\n" + valueError + "wandb: bye\n")
	if diff := cmp.Diff("ValueError: no such column: label", message); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
	if !strings.HasPrefix(stack, "Traceback") {
		t.Errorf("stack: got %q, want the traceback", stack)
	}
	message, stack = verdict.LastWords("one\ntwo  \n\n")
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
		if code, signal := verdict.Status(cmd.ProcessState); code != tt.code || signal != tt.signal {
			t.Errorf("%s: got %d, %v, want %d, %v", tt.script, code, signal, tt.code, tt.signal)
		}
	}
}

func TestMoreOutputBeforeTheLastWordsChangesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		before := rapid.StringMatching(`([a-z ]{0,20}\n){0,5}`).Draw(r, "before")
		last := rapid.SampledFrom([]string{torchTraceback, valueError, "MemoryError\n", torchTraceback + valueError, "panic: x\n"}).Draw(r, "last")
		alone := verdict.Judge(verdict.Evidence{Code: 1, Tail: last})
		if diff := cmp.Diff(alone, verdict.Judge(verdict.Evidence{Code: 1, Tail: before + last})); diff != "" {
			r.Errorf("verdict (-without +with %q):\n%s", before, diff)
		}
	})
}

func FuzzJudge(f *testing.F) {
	for _, tail := range []string{torchTraceback, valueError, torchrun, "panic: ", "Tried to allocate 1e999 GiB CUDA out of memory", "CUDA out of memory. Tried to allocate 99999999999999999999 TiB"} {
		f.Add(1, 0, tail)
	}
	f.Fuzz(func(t *testing.T, code, signal int, tail string) {
		got := verdict.Judge(verdict.Evidence{Code: code, Signal: syscall.Signal(signal), Tail: tail})
		if got.Asked < 0 || (got.Cause == verdict.Succeeded) != (code == 0 && signal == 0) || (got.Cause != verdict.Succeeded && got.Message == "") {
			t.Errorf("code %d, signal %d, tail %q: got %+v", code, signal, tail, got)
		}
	})
}
