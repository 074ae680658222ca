package stack

import (
	"bufio"
	"cmp"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/activities/retention"
	"github.com/spillway-ml/spillway/cmd/internal/cli/apps"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
	"github.com/spillway-ml/spillway/workers/device"
	"github.com/spillway-ml/spillway/workers/enforce"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// toolLimit bounds how long one program that doctor asks may take.
const toolLimit = 10 * time.Second

// examine makes every check; an error means that the request itself was wrong.
func examine(ctx context.Context, t *tool.Tool, sources []string) ([]finding, error) {
	dir, err := t.StateDir()
	if err != nil {
		return nil, err
	}
	driver := device.Open()
	reading, unread := driver.Read(ctx)
	defer func() { _ = driver.Close() }() // it was only read
	findings := []finding{
		examineCPUs(), examineMemory("/proc/meminfo"), examineKernel(), examineLimits(enforce.Detect()),
		examineGPU("/", reading, unread), examineGo(ctx), examineC(), examineTorch(pyTorch(ctx, len(reading.Devices))),
		examineOwnBuild(ownExperiments()),
	}
	for _, source := range sources {
		findings = append(findings, examineApp(ctx, t, source))
	}
	running, found := examineStack(ctx, t)
	findings = append(findings, found...)
	var kept *retention.Policy
	if running != nil {
		kept = &running.Retention
	}
	return append(findings, examineState(dir), examineRetention(ctx, dir, nearestDir(dir), kept),
		examineCosts(dir, running), examineAWS(t)), nil
}

func examineCPUs() finding {
	allowed, err := spawn.AllowedCPUs()
	if err != nil {
		return finding{"CPUs", problem, err.Error(), "the pool cannot keep its children on CPUs"}
	}
	found := finding{
		Check: "CPUs", Severity: fine,
		Found: fmt.Sprintf("%d allowed (%s), %s", len(allowed), flag.FormatCPUs(allowed), runtime.GOARCH),
	}
	if len(allowed) == 1 {
		found.Severity, found.Do = notice, "pool and local functions share the only CPU: spilling gains nothing here"
	}
	return found
}

func examineMemory(meminfo string) finding {
	values, err := readMeminfo(meminfo)
	if err != nil {
		return finding{"memory", problem, err.Error(), "the pool's memory cannot be told; Spillway needs Linux"}
	}
	available := values["MemAvailable"]
	total := values["MemTotal"]
	found := finding{Check: "memory", Severity: fine, Found: fmt.Sprintf("%s, %s available", total, available)}
	if available < quantity.GiB {
		found.Severity, found.Do = notice, "less than 1 GiB is available: end what is not needed"
	}
	return found
}

// readMeminfo reads lines such as "MemTotal:  8052244 kB".
func readMeminfo(path string) (map[string]quantity.Bytes, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	values := map[string]quantity.Bytes{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		fields := strings.Fields(rest)
		if len(fields) == 2 && fields[1] == "kB" {
			if kib, err := strconv.ParseInt(fields[0], 10, 53); err == nil {
				values[name] = quantity.Bytes(kib) * quantity.KiB
			}
		}
	}
	if values["MemTotal"] == 0 {
		return nil, fmt.Errorf("%s tells no MemTotal", path)
	}
	return values, nil
}

func examineKernel() finding {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return finding{"kernel", problem, err.Error(), ""}
	}
	return finding{
		"kernel", fine, unix.ByteSliceToString(name.Sysname[:]) + " " + unix.ByteSliceToString(name.Release[:]),
		"",
	}
}

// examineLimits says what holds attempts to their sizes, and why nothing better does.
func examineLimits(offers []enforce.Offer) finding {
	var missing []string
	for _, offer := range offers {
		switch {
		case offer.Usable && offer.Mode == enforce.None:
			return finding{
				"limits", notice, "none; " + strings.Join(missing, "; "),
				"sizes are kept by GOMAXPROCS, GOMEMLIMIT and admission only; run as root, or in a cgroup that is delegated to " +
					"you (systemd-run --user --scope -p Delegate=yes)",
			}
		case offer.Usable:
			found := fmt.Sprintf("%s (%s)", offer.Mode, strings.Join(offer.Controllers, ", "))
			if offer.Reason != "" {
				return finding{"limits", notice, found, offer.Reason}
			}
			return finding{"limits", fine, found, ""}
		default:
			missing = append(missing, fmt.Sprintf("%s: %s", offer.Mode, offer.Reason))
		}
	}
	return finding{"limits", notice, "none", "sizes are kept by GOMAXPROCS, GOMEMLIMIT and admission only"}
}

// examineGPU says which GPUs the driver tells of; root is where its files are looked for when it tells of none.
func examineGPU(root string, reading device.Reading, err error) finding {
	switch {
	case errors.Is(err, device.ErrNone):
		return examineDriver(root, err)
	case err != nil:
		return finding{"GPU", problem, err.Error(), "stages that ask for a GPU find none here"}
	case len(reading.Devices) == 0:
		return finding{
			"GPU", notice, "NVIDIA driver " + reading.Driver + " without a GPU", "hand the GPU to this container or machine",
		}
	}
	found := finding{Check: "GPU", Severity: fine}
	var models, wrong []string
	for _, d := range reading.Devices {
		if d.Wrong != "" {
			wrong = append(wrong, d.Label()+" "+d.Wrong)
			continue
		}
		text := fmt.Sprintf("%s %s, %s of %s free", d.Label(), d.Class, d.Free, d.Memory)
		if n := len(d.Processes); n > 0 {
			text += fmt.Sprintf(" (%s on it)", words.Count(n, "program"))
		}
		if why := examineNode(root, d); why != "" {
			wrong = append(wrong, why)
		}
		if d.Uncorrected > 0 {
			wrong = append(wrong, fmt.Sprintf("%s has had %d memory errors that could not be corrected: see nvidia-smi -q",
				d.Label(), d.Uncorrected))
		}
		models = append(models, text)
	}
	found.Found = fmt.Sprintf("NVIDIA driver %s for CUDA %s: %s", reading.Driver, reading.CUDA,
		cmp.Or(strings.Join(models, "; "), "none that works"))
	if len(wrong) > 0 {
		found.Severity, found.Do = notice, strings.Join(wrong, "; ")
	}
	return found
}

// examineBlind says that this binary asks no driver.
func examineBlind(system, architecture string) finding {
	found := finding{"GPU", fine, "this binary was built without cgo and sees no GPU: stages run on CPUs", ""}
	if system == "linux" && architecture == "amd64" {
		found.Do = "where there is one, install the build that sees it: SPILLWAY_VARIANT=gpu of install.sh"
	}
	return found
}

// examineNode says why not every user can open a GPU; empty when all can, and where its file is not known. The engine
// may see a GPU as root that the user of its stages (--stage-user) cannot open.
func examineNode(root string, d device.State) string {
	node := "dev/nvidia" + strconv.Itoa(d.Minor)
	info, err := os.Stat(filepath.Join(root, node))
	const everybody = 0o006
	if d.Minor < 0 || err != nil || info.Mode().Perm()&everybody == everybody {
		return ""
	}
	return fmt.Sprintf("%s (/%s) may be opened by its owner and group only (%s): stages of another user (--stage-user) "+
		"need to be in that group", d.Label(), node, info.Mode().Perm())
}

// examineDriver says why no GPU is seen: it looks for the driver's directory in /proc, and its library where the linker
// looks.
func examineDriver(root string, none error) finding {
	cards, err := filepath.Glob(filepath.Join(root, "proc/driver/nvidia/gpus/*"))
	if err == nil && len(cards) > 0 {
		return finding{
			"GPU", notice, "NVIDIA driver, GPUs: " + strconv.Itoa(len(cards)) + ", but none can be asked: " + none.Error(),
			"give this container NVIDIA's libraries (NVIDIA_DRIVER_CAPABILITIES=compute,utility), or use a build with cgo",
		}
	}
	for _, pattern := range []string{
		"usr/lib/*/libnvidia-ml.so*", "usr/lib64/libnvidia-ml.so*",
		"usr/lib/libnvidia-ml.so*",
	} {
		if found, err := filepath.Glob(filepath.Join(root, pattern)); err == nil && len(found) > 0 {
			return finding{
				"GPU", notice, "NVIDIA library without a GPU",
				"load the kernel driver, or hand the GPU to this container",
			}
		}
	}
	if !device.Sees {
		return examineBlind(runtime.GOOS, runtime.GOARCH)
	}
	return finding{"GPU", fine, "no NVIDIA driver: stages run on CPUs", ""}
}

func examineGo(ctx context.Context) finding {
	ctx, cancel := context.WithTimeout(ctx, toolLimit)
	defer cancel()
	output, err := exec.CommandContext(ctx, "go", "version").Output()
	if errors.Is(err, exec.ErrNotFound) {
		return finding{
			"Go toolchain", notice, "no go command in PATH",
			"install Go from https://go.dev/dl to use --app DIR; binaries run without it",
		}
	}
	if err != nil {
		return finding{"Go toolchain", problem, err.Error(), "see what `go version` says"}
	}
	return finding{"Go toolchain", fine, strings.TrimSpace(string(output)), ""}
}

func examineC() finding {
	for _, name := range []string{"cc", "gcc", "clang"} {
		if path, err := exec.LookPath(name); err == nil {
			return finding{"C compiler", fine, path, ""}
		}
	}
	return finding{"C compiler", notice, "none", "only apps that use cgo need one"}
}

// loadLimit bounds how long PyTorch may take to load, which it does where there are GPUs.
const loadLimit = time.Minute

// pyTorch finds the PyTorch that trains here, beside so many GPUs.
func pyTorch(ctx context.Context, gpus int) (found engine.Torch, beside int, err error) {
	ctx, cancel := context.WithTimeout(ctx, loadLimit)
	defer cancel()
	found, err = engine.PyTorch(ctx, gpus > 0)
	return found, gpus, err
}

// examineTorch says which PyTorch trains models here, beside so many GPUs.
func examineTorch(found engine.Torch, gpus int, err error) finding {
	const check, install = "PyTorch", "pip install torch in an environment that is active, or apt-get install " +
		"python3-torch libopenblas0"
	if errors.Is(err, engine.ErrNoTorch) {
		return finding{check, notice, "neither python3 nor /usr/bin/python3 has it", "`spillway train` needs it: " + install}
	}
	if err != nil {
		return finding{check, problem, err.Error(), "see what `python3 -c \"import torch\"` says"}
	}
	built := "without CUDA"
	if found.CUDA != "" {
		built = "for CUDA " + found.CUDA
	}
	one := finding{
		Check: check, Severity: fine,
		Found: fmt.Sprintf("%s %s, of %s (Python %s)", found.Version, built, found.Executable, found.Python),
	}
	if len(found.Devices) > 0 {
		one.Found += ", sees " + strings.Join(found.Devices, ", ")
	}
	switch {
	case found.Old:
		one.Severity, one.Do = problem, "`spillway train` needs PyTorch 1.13 and Python 3.8 at least: "+install
	case gpus > 0 && found.CUDA == "":
		one.Severity, one.Do = notice, "models train on CPUs only: install a build for CUDA (https://pytorch.org)"
	case gpus > 0 && len(found.Devices) == 0:
		one.Severity, one.Do = notice, "it sees no GPU, and models train on CPUs only: the driver may be older than CUDA "+
			found.CUDA+" asks for, or CUDA_VISIBLE_DEVICES hides them"
	case !found.Replicas:
		one.Severity, one.Do = notice, "replicas (--replicas, --shard) need PyTorch 2.4 or later"
	}
	return one
}

// hasSIMD reports whether the experiments include simd.
func hasSIMD(experiments string) bool {
	return slices.Contains(strings.Split(experiments, ","), "simd")
}

func examineOwnBuild(experiments string) finding {
	if hasSIMD(experiments) {
		return finding{"this binary", fine, "built with GOEXPERIMENT=simd", ""}
	}
	if runtime.GOARCH != "amd64" {
		return finding{"this binary", fine, "built for " + runtime.GOARCH + ", where Go has no SIMD", ""}
	}
	const install = "GOEXPERIMENT=simd go install -tags release " + apps.ModulePath + "/cmd/spillway"
	return finding{
		"this binary", notice, "built without GOEXPERIMENT=simd", "apps in Go train several times faster with it: " + install,
	}
}

// examineApp builds an app where needed and looks at how.
func examineApp(ctx context.Context, t *tool.Tool, source string) finding {
	check := "app " + source
	app, err := apps.Build(ctx, t, source)
	if err != nil {
		return finding{check, problem, strings.ReplaceAll(err.Error(), "\n", "; "), fault.AdviceOf(err)}
	}
	info, err := buildinfo.ReadFile(app.Path)
	if err != nil {
		return finding{check, problem, "it is not a Go program: " + err.Error(), "build it with go build"}
	}
	if !hasSIMD(experiments(info)) {
		return finding{
			check, notice, "built without GOEXPERIMENT=simd",
			"its matrix code runs several times faster with it: GOEXPERIMENT=simd go build",
		}
	}
	return finding{check, fine, fmt.Sprintf("app %s, build %s, built with GOEXPERIMENT=simd by %s", app.Descriptor.Name,
		app.Digest, info.GoVersion), ""}
}

// examineStack says whether a stack runs, and when none does, which usual ports are free; and returns the one that
// runs, nil for none.
func examineStack(ctx context.Context, t *tool.Tool) (*web.Stack, []finding) {
	running, err := session.ConnectHere(ctx, t)
	if err == nil {
		defer running.Client.Close()
		findings := []finding{{
			"stack", fine,
			fmt.Sprintf("runs at %s, process %d", running.Stack.Addresses.HTTP, running.Stack.PID), "",
		}}
		alerts, err := running.Client.Alerts(ctx, mostAlerts)
		if err != nil {
			findings = append(findings, finding{"alerts", notice, err.Error(), "look into spillway.log in the state directory"})
		}
		findings = append(findings, examineServers(running.Stack.Servers)...)
		findings = append(findings, examineHosts(running.Stack.Hosts)...)
		return &running.Stack, append(findings, examineLosses(alerts, time.Now())...)
	}
	if !errors.Is(err, session.ErrNoStack) {
		return nil, []finding{{"stack", problem, err.Error(), "look into spillway.log in the state directory"}}
	}
	findings := []finding{{"stack", fine, "none runs on this state directory", ""}}
	for _, usual := range []struct {
		name string
		port int
	}{
		{"HTTP", engine.UsualHTTP},
		{"Temporal", engine.UsualTemporal},
		{"Temporal UI", engine.UsualUI},
		{"NATS", engine.UsualNATS},
	} {
		findings = append(findings, examinePort(ctx, usual.name, usual.port))
	}
	return nil, findings
}

// examineServers says which servers there are and who leads; nothing of one that leads alone.
func examineServers(servers []web.StackServer) []finding {
	leads := slices.ContainsFunc(servers, func(one web.StackServer) bool { return one.Leads })
	switch {
	case len(servers) > 0 && !leads:
		return []finding{{
			"servers", problem, "none leads, so nothing new is granted: " + display.Servers(servers),
			"another takes the lead within seconds; if none does, the logs of the servers say why",
		}}
	case len(servers) > 1:
		return []finding{{"servers", fine, display.Servers(servers), ""}}
	default:
		return nil
	}
}

// examineHosts tells of the hosts of a stack whose GPUs nobody knows yet: tasks that ask for one wait, or are refused.
func examineHosts(hosts []predictor.Host) (findings []finding) {
	for _, host := range hosts {
		if host.GPUsUnknown {
			findings = append(findings, finding{
				"hosts", notice, "the GPUs of host " + display.Clean(host.ID) + " are unknown: their driver has not answered yet",
				"stages that ask for one wait; if that takes longer than a minute, see what nvidia-smi says there",
			})
		}
	}
	return findings
}

const (
	// mostAlerts is how many alerts are looked through for losses, and lossesFor for how long one is told of.
	mostAlerts = 1000
	lossesFor  = 7 * 24 * time.Hour
)

// examineLosses tells of what the engine has lost or made anew of late.
func examineLosses(alerts []alerting.Alert, now time.Time) (findings []finding) {
	for _, alert := range alerts {
		lost := alert.Kind == alerting.KindStreamsLost || alert.Kind == alerting.KindLedgerFailing
		if !lost || now.Sub(alert.At) > lossesFor {
			continue
		}
		findings = append(findings, finding{
			"losses", notice, alert.At.Local().Format(time.DateTime) + ": " + alert.Message,
			"if the disk is well, nothing: this is told for a week",
		})
	}
	return findings
}

func examinePort(ctx context.Context, name string, number int) finding {
	check := "port " + strconv.Itoa(number)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(number)))
	if err != nil {
		return finding{check, notice, "taken, usually " + name, "another is chosen, and printed when the stack is ready"}
	}
	if err := listener.Close(); err != nil {
		return finding{check, problem, err.Error(), ""}
	}
	return finding{check, fine, "free, for " + name, ""}
}

// nearestDir is the directory, or the nearest above it that there is.
func nearestDir(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || filepath.Dir(dir) == dir {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// examineState says whether the state directory can be written; it leaves nothing behind.
func examineState(dir string) finding {
	const check, advice = "state directory", "choose another with --state DIR"
	nearest := nearestDir(dir)
	scratch, err := os.CreateTemp(nearest, ".spillway-doctor-*")
	if err != nil {
		return finding{check, problem, fmt.Sprintf("%s cannot be written: %v", dir, fault.WithoutPath(err)), advice}
	}
	if err := errors.Join(scratch.Close(), os.Remove(scratch.Name())); err != nil {
		return finding{check, problem, err.Error(), advice}
	}
	var file unix.Statfs_t
	if err := unix.Statfs(nearest, &file); err != nil {
		return finding{check, problem, err.Error(), advice}
	}
	free := quantity.Bytes(file.Bavail) * quantity.Bytes(file.Bsize)
	found := finding{check, fine, fmt.Sprintf("%s, writable, %s free", dir, free), ""}
	if free < quantity.GiB {
		found.Severity, found.Do = notice, "less than 1 GiB is free for builds, artifacts and histories"
	}
	return found
}

// examineCosts says for how long costs are known by the hour, and where the ledger is or what it takes here. The time
// and the place are those of the running stack, where one runs, else the usual ones.
func examineCosts(stateDir string, running *web.Stack) finding {
	size := quantity.Bytes(0)
	if info, err := os.Stat(ledgerstore.Path(stateDir)); err == nil {
		size = quantity.Bytes(info.Size())
	}
	hours, place := ledgerstore.UsualHours, size.String()
	if running != nil {
		hours = cmp.Or(running.KeepHours, hours)
		if running.Ledger != "" && running.Ledger != ledgerstore.Path(stateDir) {
			place = "ledger " + display.Clean(running.Ledger)
		}
	}
	found := finding{
		"costs", fine, fmt.Sprintf("%s; known by the hour for %s (--keep-hours), by run for %s, then by the day", place,
			spanText(hours), spanText(ledgerstore.MostHours)), "",
	}
	if running != nil && running.LedgerFailing != "" {
		found.Severity = problem
		found.Found = place + " is not kept now, and is tried again: " + display.Clean(running.LedgerFailing)
		found.Do = "runs go on, and nothing is lost while the stream of events has room; bills wait for it"
	}
	return found
}

// examineAWS says which settings of AWS are present, never what they are.
func examineAWS(t *tool.Tool) finding {
	var present []string
	for _, name := range []string{
		"AWS_ENDPOINT_URL_LAMBDA", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
		"AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION",
	} {
		if value, set := t.Deps.Environment(name); set && value != "" {
			present = append(present, name)
		}
	}
	if home, set := t.Deps.Environment("HOME"); set {
		if _, err := os.Stat(filepath.Join(home, ".aws", "credentials")); err == nil {
			present = append(present, "~/.aws/credentials")
		}
	}
	if len(present) == 0 {
		return finding{"AWS", fine, "not configured: functions run on this machine", ""}
	}
	return finding{"AWS", fine, "configured by " + strings.Join(present, ", "), ""}
}
