//go:build linux

package gpucheck_test

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/cmd/internal/gpucheck"
	"github.com/spillway-ml/spillway/workers/device"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// unpacked is where the bundle is unpacked; it is removed in the end.
var unpacked string

// built makes the bundle and unpacks it, once.
var built = sync.OnceValue(func() error {
	file := filepath.Join(unpacked, "gpu-check.tar.gz")
	bundle := exec.Command(".ci/gpu-check", file)
	bundle.Dir = "../../.." // its target's directory
	if out, err := bundle.CombinedOutput(); err != nil {
		return fmt.Errorf("make the bundle: %w\n%s", err, out)
	}
	if out, err := exec.Command("tar", "-C", unpacked, "-xzf", file).CombinedOutput(); err != nil {
		return fmt.Errorf("unpack the bundle: %w\n%s", err, out)
	}
	return nil
})

func TestMain(m *testing.M) {
	var err error
	if unpacked, err = os.MkdirTemp("", "gpu-check-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := os.RemoveAll(unpacked); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// bundle is the directory of the bundle.
func bundle(t *testing.T) string {
	t.Helper()
	if err := built(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(unpacked, "gpu-check")
}

// running is a bundle's program at work.
type running struct {
	cmd       *exec.Cmd
	directory string
	out       bytes.Buffer
}

// begin starts a bundle's program in an empty directory with an almost empty environment.
func begin(t *testing.T, bundle, path string, arguments ...string) *running {
	t.Helper()
	r := &running{directory: t.TempDir()}
	r.cmd = exec.CommandContext(t.Context(), filepath.Join(bundle, "gpu-check"), arguments...)
	r.cmd.Dir, r.cmd.Env, r.cmd.Stdout, r.cmd.Stderr = r.directory, []string{"PATH=" + path}, &r.out, &r.out
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *running) file(name string) string {
	return filepath.Join(r.directory, "gpu-check-report", name)
}

// end waits for the program and returns its report, that for people, and its exit code.
func (r *running) end(t *testing.T) (gpucheck.Report, string, int) {
	t.Helper()
	_ = r.cmd.Wait() // how it ended is in ProcessState
	t.Logf("%s", &r.out)
	written, err := os.ReadDir(r.directory)
	if err != nil || len(written) != 1 || written[0].Name() != "gpu-check-report" {
		t.Fatalf("it wrote %v into its directory, %v; want the report alone", written, err)
	}
	left, err := filepath.Glob(r.file("work-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
	var report gpucheck.Report
	text, err := os.ReadFile(r.file(gpucheck.ReportJSON))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &report); err != nil {
		t.Fatal(err)
	}
	if text, err = os.ReadFile(r.file(gpucheck.ReportText)); err != nil {
		t.Fatal(err)
	}
	if got := string(text); got != report.Markdown() {
		t.Errorf("the reports tell different things:\n%s\n%s", got, report.Markdown())
	}
	return report, string(text), r.cmd.ProcessState.ExitCode()
}

// check runs a bundle's program to its end.
func check(t *testing.T, bundle, path string, arguments ...string) (gpucheck.Report, string, int) {
	t.Helper()
	report, text, code := begin(t, bundle, path, arguments...).end(t)
	if !report.Complete {
		t.Error("the report is not complete")
	}
	return report, text, code
}

// usual is the PATH of a bare system.
const usual = "/usr/bin:/bin"

func TestWithoutAGPUTheBundleEndsAndSaysWhatItSkipped(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("nvidia-smi"); err == nil {
		t.Skip("this machine has a GPU")
	}
	report, text, code := check(t, bundle(t), usual)
	if code != 0 {
		t.Errorf("exit code %d; want 0, as nothing is wrong", code)
	}
	for _, s := range report.Steps {
		if s.Outcome != gpucheck.Skipped || len(s.Notes) == 0 {
			t.Errorf("%s is %s with %q; want skipped, and why", s.Name, s.Outcome, s.Notes)
		}
		if !strings.Contains(text, "| "+s.Name+" | skipped |") {
			t.Errorf("the text does not say that %s was skipped:\n%s", s.Name, text)
		}
	}
	t.Logf("it took %.1f s", report.Seconds)
}

func TestEveryStepComputesOnCPUs(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath(torchtest.Python(t))
	if err != nil {
		t.Fatal(err)
	}
	report, text, code := check(t, bundle(t), usual, "--device", "cpu", "--limit", "20m", "--python", python)
	if code != 0 {
		t.Errorf("exit code %d; want 0\n%s", code, text)
	}
	needGPU := []string{"inventory", "conformance-bfloat16", "conformance-float16", "assigned"}
	for _, s := range report.Steps {
		switch {
		case slices.Contains(needGPU, s.Name), s.Name == "transformers" && report.Machine.Transformers == "",
			s.Name == "precisions" && strings.HasPrefix(report.Machine.Torch, "1."):
			if s.Outcome != gpucheck.Skipped && len(report.Machine.GPUs) == 0 {
				t.Errorf("%s is %s without what it needs", s.Name, s.Outcome)
			}
		case s.Outcome != gpucheck.Passed:
			t.Errorf("%s is %s: %q\n%s", s.Name, s.Outcome, s.Why, s.Log)
		}
	}
	figures := map[string]float64{}
	for _, s := range report.Steps {
		for _, f := range s.Figures {
			figures[f.Name] = f.Value
			if f.Bar != 0 {
				t.Errorf("%s is judged on CPUs", f.Name)
			}
		}
	}
	for name, most := range map[string]float64{ // of what is computed, not of how fast
		"losses of two parts beside the unsplit model's, farthest apart":                                   0.01,
		"losses of 4 parts beside the unsplit model's, farthest apart":                                     0.01,
		"a step of the unsplit model beside one of plain PyTorch, medians":                                 1e3,
		"a step of the unsplit model with dropout in 4 micro-batches beside one of plain PyTorch, medians": 1e3,
		"a step of 4 parts on one device beside one of the unsplit model, medians":                         1e3,
		"peak of a part that is farthest off: unsplit convolutions":                                        1e3,
		"peak of a part that is farthest off: a transformer in two bounded parts":                          1e3,
	} {
		if value, told := figures[name]; !told || value > most {
			t.Errorf("%s: %v, told %t; want at most %v", name, value, told, most)
		}
	}
}

// emulated makes a bundle whose programs stand in for those of a machine with GPUs: the driver, nvidia-smi, Python and
// the conformance test, which are shell scripts. It returns the bundle and the PATH.
func emulated(t *testing.T, gpus int, conformance string) (directory, path string) {
	t.Helper()
	directory = t.TempDir()
	if err := os.Link(filepath.Join(bundle(t), "gpu-check"), filepath.Join(directory, "gpu-check")); err != nil {
		t.Fatal(err)
	}
	script := func(name, text string) {
		if err := os.WriteFile(filepath.Join(directory, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	reading := device.Reading{Driver: "550.54.15", CUDA: "12.4"}
	var rows, list strings.Builder
	for i := range gpus {
		uuid := fmt.Sprintf("GPU-0000000%d-0000-0000-0000-000000000000", i)
		reading.Devices = append(reading.Devices, device.State{
			Device: device.Device{
				UUID: uuid, Index: i, Instance: -1, Minor: i, Name: "NVIDIA H100", Class: "h100",
				Memory: 79 << 30,
			}, Free: 79 << 30,
		})
		fmt.Fprintf(&rows, "%d, %s, NVIDIA H100, 81559, 663, [N/A]\n", i, uuid)
		fmt.Fprintf(&list, "GPU %d: NVIDIA H100 (UUID: %s)\n", i, uuid)
	}
	text, err := json.Marshal(reading)
	if err != nil {
		t.Fatal(err)
	}
	script(gpucheck.Inventory, fmt.Sprintf("while echo '%s'; do sleep 0.1; done", text))
	script("nvidia-smi", fmt.Sprintf("case $1 in -L) echo '%s' ;; *) echo '%s' ;; esac", list.String(), rows.String()))
	script("python3", `echo '{"python": "3.12.0", "torch": "2.9.0", "cuda": "12.8", "devices": 1, "name": "NVIDIA H100",
"memory": 84000000000, "bfloat16": true, "uuid": "'${CUDA_VISIBLE_DEVICES#GPU-}'"}' | tr -d '\n'`)
	script(gpucheck.Conformance, conformance)
	return directory, directory + ":" + usual
}

func outcome(t *testing.T, report gpucheck.Report, name string) gpucheck.Result {
	t.Helper()
	i := slices.IndexFunc(report.Steps, func(r gpucheck.Result) bool { return r.Name == name })
	if i < 0 {
		t.Fatalf("there is no step %s", name)
	}
	return report.Steps[i]
}

func TestAMachineOfEightGPUsIsCheckedOnOneOfThem(t *testing.T) {
	t.Parallel()
	directory, path := emulated(t, 8, `echo "--- PASS: $*"
[ "$SPILLWAY_TEST_DEVICES" = cuda:0 ] || echo "--- FAIL: on $SPILLWAY_TEST_DEVICES"
case $CUDA_VISIBLE_DEVICES in GPU-00000007-*) ;; *) exit 1 ;; esac
case $SPILLWAY_TEST_PRECISION-$NVIDIA_TF32_OVERRIDE in float32-0 | bfloat16- | float16-) ;; *) exit 1 ;; esac`)
	report, _, code := check(t, directory, path, "--only",
		"inventory,machine,conformance,conformance-bfloat16,conformance-float16,assigned")
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, name := range []string{"inventory", "machine", "conformance", "conformance-bfloat16", "conformance-float16"} {
		s := outcome(t, report, name)
		if s.Outcome != gpucheck.Passed {
			t.Errorf("%s is %s: %q\n%s", name, s.Outcome, s.Why, s.Log)
		}
		if strings.HasPrefix(name, "conformance") && !strings.HasPrefix(s.Notes[0], "1 checks passed, 0 failed, on cuda") {
			t.Errorf("%s: %q", name, s.Notes)
		}
	}
	if s := outcome(t, report, "assigned"); s.Outcome != gpucheck.Skipped || // no program was on any device
		!strings.Contains(strings.Join(s.Notes, "\n"), "nothing was computed on the assigned device") {
		t.Errorf("assigned is %s: %q", s.Outcome, s.Notes)
	}
	if !strings.HasPrefix(report.Machine.Assigned, "GPU-00000007") || report.Machine.Device != "cuda" {
		t.Errorf("device %q, %q; want one GPU by its UUID", report.Machine.Device, report.Machine.Assigned)
	}
}

func TestAStepThatHangsIsEndedWithAllThatItStarted(t *testing.T) {
	t.Parallel()
	// one of its group, and one that left it and lost its parent
	directory, path := emulated(t, 1, `sleep 1000 & echo "pid $!"
setsid sh -c 'sleep 1000 & echo "pid $!"'
echo words
sleep 1000`)
	report, text, code := check(t, directory, path, "--only", "conformance,assigned", "--step-limit", "2s")
	if code != 1 {
		t.Errorf("exit code %d; want 1", code)
	}
	s := outcome(t, report, "conformance")
	if s.Outcome != gpucheck.Failed || !strings.Contains(strings.Join(s.Why, " "), "killed at its limit of 2s") {
		t.Errorf("it is %s: %q", s.Outcome, s.Why)
	}
	if !strings.Contains(s.Log, "words") || !strings.Contains(text, "words") {
		t.Errorf("its log %q is not in the report:\n%s", s.Log, text)
	}
	found := 0
	for line := range strings.Lines(s.Log) {
		number, told := strings.CutPrefix(strings.TrimSpace(line), "pid ")
		if !told {
			continue
		}
		pid, err := strconv.Atoi(number)
		if err != nil {
			t.Fatal(err)
		}
		found++
		if err := syscall.Kill(pid, 0); err == nil {
			t.Errorf("process %d is still there", pid)
		}
	}
	if found != 2 {
		t.Errorf("the log tells of %d processes; want 2:\n%s", found, s.Log)
	}
}

// TestAnInterruptEndsTheCheckWithAReportOfWhatWasDone interrupts a step that has begun.
func TestAnInterruptEndsTheCheckWithAReportOfWhatWasDone(t *testing.T) {
	t.Parallel()
	for signal, want := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			directory, path := emulated(t, 1, `echo "pid $$"
sleep 1000`)
			r := begin(t, directory, path, "--only", "inventory,machine,conformance,conformance-bfloat16,assigned")
			var log []byte
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
				log, _ = os.ReadFile(r.file("logs/conformance.txt")) // it is not there yet
				if bytes.HasSuffix(log, []byte("\n")) || time.Now().After(deadline) {
					break
				}
			}
			if err := r.cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			report, text, code := r.end(t)
			if code != want || !report.Interrupted || report.Complete || !strings.Contains(text, "; it was interrupted") {
				t.Errorf("exit code %d, interrupted: %t, complete: %t; want %d\n%s", code, report.Interrupted, report.Complete,
					want, text)
			}
			for name, want := range map[string]gpucheck.Outcome{
				"inventory": gpucheck.Passed, "machine": gpucheck.Passed, "conformance": gpucheck.Skipped,
				"conformance-bfloat16": gpucheck.Skipped, "assigned": gpucheck.Skipped,
			} {
				if s := outcome(t, report, name); s.Outcome != want || want == gpucheck.Skipped && len(s.Notes) == 0 {
					t.Errorf("%s is %s: %q, %q; want %s", name, s.Outcome, s.Why, s.Notes, want)
				}
			}
			number, _ := strings.CutPrefix(strings.TrimSpace(string(log)), "pid ")
			pid, err := strconv.Atoi(number)
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, 0); err == nil {
				t.Errorf("process %d of the step is still there", pid)
			}
		})
	}
}

func TestHelpNamesWhatPeopleGiveAndNothingElse(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), filepath.Join(bundle(t), "gpu-check"), "--help").CombinedOutput()
	if err != nil {
		t.Error(err)
	}
	var options []string
	for line := range strings.Lines(string(out)) {
		if option, found := strings.CutPrefix(line, "  -"); found {
			options = append(options, strings.Fields(option)[0])
		}
	}
	if want := []string{"device", "directory", "limit", "only", "python", "step-limit"}; !slices.Equal(options, want) {
		t.Errorf("it names the options %q; want %q:\n%s", options, want, out)
	}
}

func TestAStepThatThereIsNoTimeForIsNoSuccess(t *testing.T) {
	t.Parallel()
	directory, path := emulated(t, 1, "echo '--- PASS: it'")
	report, text, code := check(t, directory, path, "--only", "machine,conformance", "--limit", "9s") // a step wants ten
	if s := outcome(t, report, "conformance"); code != 3 || s.Outcome != gpucheck.Skipped || !s.LeftOut {
		t.Errorf("exit code %d, %s, left out: %t; want 3, skipped and true\n%s", code, s.Outcome, s.LeftOut, text)
	}
}

func TestAGPUThatTorchDoesNotSeeFails(t *testing.T) {
	t.Parallel()
	directory, path := emulated(t, 1, "exit 1")
	python := `echo '{"python": "3.12.0", "torch": "2.9.0+cpu", "why": "Torch not compiled with CUDA enabled"}'`
	if err := os.WriteFile(filepath.Join(directory, "python3"), []byte("#!/bin/sh\n"+python), 0o755); err != nil {
		t.Fatal(err)
	}
	report, _, code := check(t, directory, path, "--python", filepath.Join(directory, "python3"))
	if s := outcome(t, report, "machine"); code != 1 || s.Outcome != gpucheck.Failed ||
		!strings.Contains(strings.Join(s.Why, " "), "not compiled with CUDA") {
		t.Errorf("exit code %d, %s: %q", code, s.Outcome, s.Why)
	}
	if s := outcome(t, report, "inventory"); s.Outcome != gpucheck.Passed {
		t.Errorf("inventory is %s: %q", s.Outcome, s.Why)
	}
}

// TestTheDriverIsAskedWithOldCLibraries has the bundle's program load a driver of C, and looks at what it needs of the
// C library.
func TestTheDriverIsAskedWithOldCLibraries(t *testing.T) {
	t.Parallel()
	program := filepath.Join(bundle(t), gpucheck.Inventory)
	file, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	symbols, err := file.ImportedSymbols()
	if err != nil || len(symbols) == 0 {
		t.Fatalf("%d symbols, %v", len(symbols), err)
	}
	for _, s := range symbols {
		if version, found := strings.CutPrefix(s.Version, "GLIBC_2."); found && runtime.GOARCH == "amd64" {
			if minor, err := strconv.ParseFloat(version, 64); err != nil || minor > 17 {
				t.Errorf("%s is that of glibc 2.%s, which not every machine has", s.Name, version)
			}
		}
	}
	directory := t.TempDir()
	compile := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-o",
		filepath.Join(directory, "libnvidia-ml.so.1"), "testdata/driver.c")
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("compile a driver: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), program, gpucheck.WatchCommand)
	cmd.Env = []string{"LD_LIBRARY_PATH=" + directory}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var reading device.Reading
	err = json.NewDecoder(out).Decode(&reading)
	if err := errors.Join(err, cmd.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	want := device.Reading{Driver: "535.1", CUDA: "12.2", Devices: []device.State{{
		Device: device.Device{
			UUID: "GPU-12345678", Index: 0, Instance: -1, Minor: 0, Name: "NVIDIA T4", Class: "t4", Memory: 15 << 30,
			Capability: "7.5", Bus: "00000000:3B:00.0", GPUInstance: -1,
		},
		Used: 1 << 30, Free: 14 << 30, Busy: 0.25, Watts: 30, Uncorrected: -1,
	}}}
	if diff := cmp.Diff(want, reading); diff != "" {
		t.Error(diff)
	}
}

// TestTheBundleLinksNoServer lists what its programs are made of.
func TestTheBundleLinksNoServer(t *testing.T) {
	t.Parallel()
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-test", "./program", "../../../workers/exec/torch")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := strings.Fields(string(out))
	if !slices.Contains(packages, "github.com/spillway-ml/spillway/workers/training") {
		t.Fatalf("%d packages without workers/training", len(packages))
	}
	for _, p := range packages {
		for _, server := range []string{
			"go.temporal.io", "github.com/nats-io", "github.com/temporalio", "modernc.org/sqlite",
			"github.com/aws", "k8s.io",
		} {
			if strings.HasPrefix(p, server) {
				t.Errorf("it links %s", p)
			}
		}
	}
}
