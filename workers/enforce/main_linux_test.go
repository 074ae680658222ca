package enforce_test

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/spillway-ml/spillway/workers/enforce"
)

// helperVar makes the test binary one of the helpers below instead of a test: the name and its arguments, separated by
// spaces.
const helperVar = "ENFORCE_TEST_HELPER"

func TestMain(m *testing.M) {
	if os.Getpid() == 1 {
		machine()
	}
	if words := strings.Fields(os.Getenv(helperVar)); len(words) > 0 {
		if err := helper(words[0], words[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// helper is what a child does.
func helper(name string, args []string) error {
	switch name {
	case "nop":
		return nil
	case "wait": // until killed
		fmt.Println("ready")
		sleep()
	case "where":
		text, err := os.ReadFile("/proc/self/cgroup")
		fmt.Print(string(text))
		return err
	case "burn":
		for range runtime.NumCPU() {
			go func() {
				for x := 0; ; x++ {
					_ = x * x
				}
			}()
		}
		sleep()
	case "parallel":
		return serve(parallel)
	case "garbage":
		return serve(garbage)
	case "grow":
		return grow()
	case "breathe":
		return breathe()
	case "cache":
		return fillCache(args[0])
	case "bomb":
		return bomb()
	case "leave":
		return leave(args)
	case "owner":
		return own(args[0], enforce.Mode(strings.Join(args[1:], " ")))
	case "delegate":
		return delegate(args[0])
	}
	return fmt.Errorf("no helper %q", name)
}

// sleep waits to be killed.
func sleep() {
	for {
		time.Sleep(time.Hour)
	}
}

// grow holds as many MiB as the last line of its input says, and says so.
func grow() error {
	var held [][]byte
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		want, err := strconv.Atoi(lines.Text())
		if err != nil {
			return err
		}
		for len(held) < want {
			block := make([]byte, 1<<20)
			touch(block)
			held = append(held, block)
		}
		fmt.Println("held", len(held))
	}
	runtime.KeepAlive(held)
	return lines.Err()
}

// touch makes each page of block count.
func touch(block []byte) {
	for i := 0; i < len(block); i += 4096 {
		block[i] = 1
	}
}

// breathe holds as many MiB as each line of its input says, gives them back and says so.
func breathe() error {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		want, err := strconv.Atoi(lines.Text())
		if err != nil {
			return err
		}
		touch(make([]byte, want<<20))
		debug.FreeOSMemory()
		fmt.Println("held", want)
	}
	return lines.Err()
}

// fillCache writes and reads a file of 64 MiB.
func fillCache(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	for range 64 {
		if _, err := file.Write(block); err != nil {
			return err
		}
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return err
	}
	fmt.Println("ready")
	sleep()
	return nil
}

// self is a command that runs the test binary as a helper.
func self(words ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helperVar+"="+strings.Join(words, " "))
	cmd.Stderr = os.Stderr
	return cmd
}

// bomb starts copies of itself as fast as it can, in other sessions.
func bomb() error {
	for {
		cmd := self("bomb")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		cmd.Stderr = nil
		if err := cmd.Start(); err != nil {
			time.Sleep(time.Millisecond) // the limit is reached
			continue
		}
		go func() { _ = cmd.Wait() }()
	}
}

// leave becomes a grandchild in a session of its own whose parent has ended, says its ID and waits.
func leave(args []string) error {
	if len(args) > 0 {
		fmt.Println(os.Getpid())
		sleep()
	}
	cmd := self("leave", "again")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stdout = os.Stdout
	return cmd.Start()
}

// own opens an Enforcer, starts a child that leaves and waits to be killed.
func own(stateDir string, mode enforce.Mode) error {
	e, err := enforce.Open(enforce.Options{StateDir: stateDir, Mode: mode})
	if err != nil {
		return err
	}
	g, err := e.Group("orphans")
	if err != nil {
		return err
	}
	cmd := self("leave")
	cmd.Stdout = os.Stdout
	if err := g.Start(cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return err
	}
	sleep()
	return nil
}

// programVar names the program that the first process of a virtual machine runs, with its own arguments; this one where
// it is not set.
const programVar = "ENFORCE_TEST_PROGRAM"

// machine makes this process the first one of a virtual machine: it mounts what the tests need, runs them in a child,
// collects what ends and switches the machine off.
func machine() {
	status, err := boot()
	fmt.Printf("\nexit status %d, error %v\n", status, err)
	time.Sleep(100 * time.Millisecond) // for the serial line
	_ = syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
	sleep()
}

// disks are what machines that have one keep /tmp on, qemu's and that of User-Mode Linux: files in a tmpfs count as
// memory of who wrote them, and are not given back.
var disks = []string{"/dev/nvme0n1", "/dev/ubda"}

func boot() (status int, err error) {
	for _, m := range []struct{ kind, from, at string }{
		{"proc", "proc", "/proc"},
		{"sysfs", "sysfs", "/sys"},
		{"devtmpfs", "devtmpfs", "/dev"},
		{"cgroup2", "cgroup2", "/sys/fs/cgroup"},
		{"tmpfs", "tmpfs", "/tmp"},
		{"ext4", disks[0], "/tmp"},
		{"ext4", disks[1], "/tmp"},
	} {
		if _, err := os.Stat(m.from); slices.Contains(disks, m.from) && errors.Is(err, os.ErrNotExist) {
			continue
		}
		err := errors.Join(os.MkdirAll(m.at, 0o755), unix.Mount(m.from, m.at, m.kind, 0, ""))
		if err != nil && !errors.Is(err, unix.EBUSY) {
			return 0, fmt.Errorf("mount %s at %s: %w", m.from, m.at, err)
		}
	}
	if err := os.Chmod("/tmp", 0o1777); err != nil {
		return 0, err
	}
	// Shells open what a program was given by descriptor.
	if err := errors.Join(os.Symlink("/proc/self/fd", "/dev/fd"), loopback()); err != nil {
		return 0, err
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return 0, err
	}
	fmt.Printf("linux %s, %d CPUs\n", unix.ByteSliceToString(name.Release[:]), runtime.NumCPU())
	program := cmp.Or(os.Getenv(programVar), "/init")
	pid, err := syscall.ForkExec(program, append([]string{program}, os.Args[1:]...),
		&syscall.ProcAttr{
			Env: append(os.Environ(), "TMPDIR=/tmp", "PATH=/usr/bin:/bin", "HOME=/tmp"), Files: []uintptr{0, 1, 2}, Dir: "/tmp",
		})
	if err != nil {
		return 0, err
	}
	for {
		var state syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &state, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, err
		case ended == pid:
			return state.ExitStatus(), nil
		}
	}
}

// loopback switches the machine's only network interface on: tests have servers of their own.
func loopback() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket to switch lo on: %w", err)
	}
	request, err := unix.NewIfreq("lo")
	if err == nil {
		request.SetUint16(unix.IFF_UP)
		err = unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request)
	}
	if err := errors.Join(err, unix.Close(socket)); err != nil {
		return fmt.Errorf("switch lo on: %w", err)
	}
	return nil
}

// patience is how long tests wait for what must happen. SPILLWAY_TEST_PATIENCE multiplies it, for emulated machines.
func patience() time.Duration {
	factor, err := strconv.Atoi(os.Getenv("SPILLWAY_TEST_PATIENCE"))
	if err != nil || factor < 1 {
		factor = 1
	}
	return time.Duration(factor) * 3 * time.Minute
}

// eventually polls until is true.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience()); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain: %s", patience(), what)
		}
	}
}

// kernelModes are the modes that hold something on this host. Tests skip when there are none, unless they must not.
func kernelModes(t *testing.T) []enforce.Mode {
	t.Helper()
	var modes []enforce.Mode
	var reasons []string
	for _, offer := range enforce.Detect() {
		if offer.Usable && offer.Mode != enforce.None {
			modes = append(modes, offer.Mode)
		} else {
			reasons = append(reasons, fmt.Sprintf("%s: %s", offer.Mode, offer.Reason))
		}
	}
	if len(modes) > 0 {
		return modes
	}
	if slices.Contains(strings.Split(os.Getenv("SPILLWAY_TEST_REQUIRE"), ","), "cgroup") {
		t.Fatalf("no cgroups can be used: %v", reasons)
	}
	t.Skipf("no cgroups can be used: %v", reasons)
	return nil
}

// open opens an Enforcer that the test's end closes.
func open(t *testing.T, mode enforce.Mode, processes int) *enforce.Enforcer {
	t.Helper()
	e, err := enforce.Open(enforce.Options{StateDir: t.TempDir(), Mode: mode, Processes: processes})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return e
}

func group(t *testing.T, e *enforce.Enforcer, name string) *enforce.Group {
	t.Helper()
	g, err := e.Group(name)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// start starts a helper in a group and collects it when the test ends. The group must be killed by then.
func start(t *testing.T, g *enforce.Group, words ...string) *exec.Cmd {
	t.Helper()
	cmd := self(words...)
	if err := g.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func usage(t *testing.T, g *enforce.Group) enforce.Usage {
	t.Helper()
	u, err := g.Usage()
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// grower is a child whose memory the test chooses.
type grower struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startGrower(t *testing.T, g *enforce.Group) *grower {
	t.Helper()
	return startHolder(t, g, "grow")
}

// startHolder starts a helper that is told how many MiB to hold.
func startHolder(t *testing.T, g *enforce.Group, helper string) *grower {
	t.Helper()
	cmd := self(helper)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &grower{cmd: cmd, in: in, out: bufio.NewReader(out)}
}

// hold makes the child hold as many MiB; the error tells that it died.
func (g *grower) hold(mib int) error {
	if _, err := fmt.Fprintln(g.in, mib); err != nil {
		return err
	}
	line, err := g.out.ReadString('\n')
	if err == nil && !strings.HasPrefix(line, "held ") {
		err = fmt.Errorf("it said %q", line)
	}
	return err
}
