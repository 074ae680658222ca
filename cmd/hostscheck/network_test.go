//go:build linux

package hostscheck_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// prefix begins the names of everything that a suite leaves outside of files: what another one, which was killed, has
	// left is found by it.
	prefix = "spillway-hosts-"
	// subnet is where all hosts are. They are in namespaces of their own, so that it meets no other net of this machine.
	subnet = "10.93.0."
	// between is the bridge that joins all hosts, in the namespace of the hub.
	between = "between"
)

// place is where a suite works: a directory, and network namespaces with its name. While its process lives it has the
// lock of the directory.
type place struct {
	dir  string
	lock *os.File
}

// openPlace makes one, and removes those of suites that were killed.
func openPlace() (p place, err error) {
	olds, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	if err != nil {
		return p, err
	}
	for _, old := range olds {
		if p, err := lockPlace(old); err == nil {
			if err := p.remove(); err != nil {
				return p, fmt.Errorf("remove what a suite has left: %w", err)
			}
		}
	}
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		return p, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // PostgreSQL is another user
		return p, err
	}
	return lockPlace(dir)
}

func lockPlace(dir string) (p place, err error) {
	p.dir = dir
	if p.lock, err = os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return p, err
	}
	if err = syscall.Flock(int(p.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return p, errors.Join(err, p.lock.Close())
	}
	return p, nil
}

func (p place) name() string { return filepath.Base(p.dir) }

// remove kills what runs in the namespaces, and removes them, the mounts and the directory.
func (p place) remove() error {
	namespaces, err := filepath.Glob(filepath.Join("/run/netns", p.name()+"-*"))
	for _, namespace := range namespaces {
		name := filepath.Base(namespace)
		err = errors.Join(err, killAll(name), ip("netns", "del", name))
	}
	for _, group := range groupsBelow(p.dir) {
		if removed := os.Remove(group); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
			err = errors.Join(err, removed)
		}
	}
	mounts, read := os.ReadFile("/proc/self/mounts")
	err = errors.Join(err, read)
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[1]; strings.HasPrefix(at, p.dir+"/") {
			err = errors.Join(err, unix.Unmount(at, unix.MNT_DETACH))
		}
	}
	return errors.Join(err, os.RemoveAll(p.dir), p.lock.Close())
}

// groupsBelow are the cgroups that engines and agents whose state is below a directory have made, by their own account;
// those further in come first.
func groupsBelow(dir string) (groups []string) {
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "cgroups.lock" {
			return nil //nolint:nilerr // what is removed meanwhile is gone
		}
		var record struct{ Directories []string }
		text, err := os.ReadFile(path)
		if err == nil && json.NewDecoder(bytes.NewReader(text)).Decode(&record) == nil {
			groups = append(groups, record.Directories...)
		}
		return nil
	})
	for _, group := range slices.Clone(groups) {
		_ = filepath.WalkDir(group, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() && path != group {
				groups = append(groups, path)
			}
			return nil
		})
	}
	slices.SortFunc(groups, func(a, b string) int { return len(b) - len(a) })
	return groups
}

// processesIn are those of a namespace.
func processesIn(namespace string) (pids []int, err error) {
	text, err := exec.Command("ip", "netns", "pids", namespace).Output()
	if err != nil {
		return nil, fmt.Errorf("list the processes of %s: %w", namespace, err)
	}
	for field := range strings.FieldsSeq(string(text)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// killAll kills every process of a namespace with SIGKILL, and returns when there is none: one that starts another
// meanwhile does not escape.
func killAll(namespace string) error {
	for range 1000 {
		pids, err := processesIn(namespace)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("processes of %s do not end", namespace)
}

func ip(arguments ...string) error {
	if text, err := exec.Command("ip", arguments...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(arguments, " "), err, bytes.TrimSpace(text))
	}
	return nil
}

// network is a net of hosts, each a network namespace with an address.
type network struct {
	t     testing.TB
	hub   string // the namespace in which they meet
	dir   string
	hosts []*host
}

// host is one of them.
type host struct {
	t         testing.TB
	network   *network
	name      string
	namespace string
	address   string
	dir       string
	known     string // the file of hosts that it knows by name; empty for that of the machine
}

var networks int

// newNetwork makes a net, which goes with the test.
func newNetwork(t *testing.T) *network {
	t.Helper()
	networks++
	n := &network{
		t: t, hub: fmt.Sprintf("%s-%d", here.name(), networks),
		dir: filepath.Join(here.dir, strconv.Itoa(networks)),
	}
	n.do(os.Mkdir(n.dir, 0o755), ip("netns", "add", n.hub)) //nolint:gosec // PostgreSQL is another user
	t.Cleanup(func() { n.do(ip("netns", "del", n.hub)) })
	n.do(ip("-n", n.hub, "link", "add", between, "type", "bridge"), ip("-n", n.hub, "link", "set", between, "up"))
	return n
}

func (n *network) do(errs ...error) {
	n.t.Helper()
	if err := errors.Join(errs...); err != nil {
		n.t.Fatal(err)
	}
}

// programs is the directory that comes first in PATH on every host; there may be nothing.
func (n *network) programs() string { return filepath.Join(n.dir, "programs") }

// host adds a host, whose directory is empty. At the end everything that runs there is killed.
func (n *network) host(name string) *host {
	n.t.Helper()
	h := &host{
		t: n.t, network: n, name: name, namespace: n.hub + "-" + name, address: subnet + strconv.Itoa(len(n.hosts)+1),
		dir: filepath.Join(n.dir, name),
	}
	n.hosts = append(n.hosts, h)
	n.do(os.Mkdir(h.dir, 0o755), ip("netns", "add", h.namespace)) //nolint:gosec // PostgreSQL is another user
	n.t.Cleanup(func() { n.do(killAll(h.namespace), ip("netns", "del", h.namespace)) })
	n.do(
		ip("-n", h.namespace, "link", "set", "lo", "up"),
		ip("-n", h.namespace, "link", "add", "eth0", "type", "veth", "peer", "name", name, "netns", n.hub),
		ip("-n", h.namespace, "addr", "add", h.address+"/24", "dev", "eth0"),
		ip("-n", h.namespace, "link", "set", "eth0", "up"),
		ip("-n", n.hub, "link", "set", name, "master", between, "up"),
	)
	return h
}

// plug pulls the host's cable, or plugs it in again.
func (h *host) plug(in bool) {
	h.t.Helper()
	state := "down"
	if in {
		state = "up"
	}
	h.network.do(ip("-n", h.network.hub, "link", "set", h.name, state))
}

// killAll ends the host as the loss of its power does, but for what is on its disk.
func (h *host) killAll() {
	h.t.Helper()
	h.network.do(killAll(h.namespace))
}

// within calls do in the host's namespace, in which the machine has the host's name. What do starts and opens stays
// there.
func (h *host) within(do func() error) error {
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this goroutine, and with it that it is elsewhere
		file, err := os.Open(filepath.Join("/run/netns", h.namespace))
		if err != nil {
			ended <- err
			return
		}
		err = errors.Join(unix.Setns(int(file.Fd()), unix.CLONE_NEWNET), file.Close())
		if err == nil {
			err = errors.Join(unix.Unshare(unix.CLONE_NEWUTS), unix.Sethostname([]byte(h.name)))
		}
		if err == nil && h.known != "" {
			err = lookUp(h.known)
		}
		if err == nil {
			err = do()
		}
		ended <- err
	}()
	return <-ended
}

// lookUp has what this thread starts look names up in a file.
func lookUp(file string) error {
	const everywhere = unix.MS_REC | unix.MS_SLAVE // what is mounted later is seen here, and not the reverse
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	return errors.Join(unix.Mount("", "/", "", everywhere, ""), unix.Mount(file, "/etc/hosts", "", unix.MS_BIND, ""))
}

// know has the host know others by name: lines of an address and a name, as in /etc/hosts.
func (h *host) know(lines string) {
	h.t.Helper()
	h.known = h.write("hosts", []byte("127.0.0.1 localhost\n"+lines), 0o644)
}

// dial connects from the host. Addresses are numbers.
func (h *host) dial(ctx context.Context, network, address string) (connection net.Conn, err error) {
	err = h.within(func() (err error) {
		connection, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return connection, err
}

// write writes a file of the host and returns its path.
func (h *host) write(name string, text []byte, mode fs.FileMode) string {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	h.network.do(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, mode)) //nolint:gosec // as above
	return path
}
