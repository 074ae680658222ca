package torch

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// hello is the first line of a connection to another host, which says what it is for. One of its fields is set.
type hello struct {
	// Start has a runner started, to which the rest of the connection belongs.
	Start *startAway `json:"start,omitempty"`
	// Hold keeps the host serving for as long as the connection lives; the answer describes the host.
	Hold bool `json:"hold,omitempty"`
	// Get asks for a file that a runner has exported, by what it was called, and Put brings one to import of so many
	// bytes.
	Get string `json:"get,omitempty"`
	Put string `json:"put,omitempty"`
	// Bytes is the size of what follows Put.
	Bytes int64 `json:"bytes,omitempty"`
}

// startAway is what launching and loading know of a runner.
type startAway struct {
	Threads int   `json:"threads,omitempty"`
	CPUs    []int `json:"cpus,omitempty"`
	// Session is what runners have in common that share memory, and Parts how many parts it is for; empty for none.
	Session string `json:"session,omitempty"`
	Parts   int    `json:"parts,omitempty"`
}

// told is the answer to a hello.
type told struct {
	Error string `json:"error,omitempty"`
	Bytes int64  `json:"bytes,omitempty"`
	// Devices are those of the host, in answer to Hold, and Memory what it can give, in bytes; 0 where that is not known.
	Devices []exec.Device  `json:"devices,omitempty"`
	Memory  quantity.Bytes `json:"memory,omitempty"`
}

// awayProcess is the process of a runner on another host: it ends with the connection to it.
type awayProcess struct {
	host  string
	conn  net.Conn
	ended string // how it says that the process has ended; set before the runner is
}

func (p *awayProcess) number() int { return 0 }
func (p *awayProcess) kill()       { _ = p.conn.Close() }
func (p *awayProcess) awaitExit()  {}
func (p *awayProcess) release()    {}

func (p *awayProcess) collect() string {
	if p.ended == "" {
		return "the connection to host " + p.host + " has ended"
	}
	return "on host " + p.host + ": " + p.ended
}

var _ exec.Ganger = (*Executor)(nil)

// errGang is about a device of a host that is not there.
var errGang = errors.New("there is no such host in the gang")

// away is another host of the gang.
type away exec.Host

// hostOf is the host of a device; nil where that is this process's.
func (e *Executor) hostOf(device exec.Device) (*away, error) {
	switch {
	case device.Host == 0:
		return nil, nil //nolint:nilnil // this process's own is no host of another
	case device.Host < 0 || device.Host >= len(e.hosts) || e.hosts[device.Host].Dial == nil:
		return nil, fmt.Errorf("device %s is on host %d: %w", device.ID, device.Host, errGang)
	}
	return &e.hosts[device.Host], nil
}

// greet connects to a host and says what for.
func (h *away) greet(ctx context.Context, what hello) (net.Conn, error) {
	conn, err := h.Dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("reach host %s of the gang: %w", h.Name, err)
	}
	line, err := json.Marshal(what)
	if err == nil {
		_, err = conn.Write(append(line, '\n'))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reach host %s of the gang: %w", h.Name, err), conn.Close())
	}
	return conn, nil
}

// answered reads the answer to a hello. What follows it is in the reader.
func answered(reader *bufio.Reader) (t told, err error) {
	line, err := reader.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &t)
	}
	if err == nil && t.Error != "" {
		err = errors.New(t.Error)
	}
	return t, err
}

// startAway starts a runner on another host.
func (e *Executor) startAway(ctx context.Context, host *away, device exec.Device, shared *arena) (*runner, error) {
	start := &startAway{Threads: device.Threads, CPUs: device.CPUs}
	if shared != nil {
		start.Session, start.Parts = shared.session, shared.parts
	}
	conn, err := host.greet(ctx, hello{Start: start})
	if err != nil {
		return nil, err
	}
	r := newRunner(ctx, "python on host "+host.Name, &awayProcess{host: host.Name, conn: conn}, conn, conn,
		spawn.NewTail(e.options.Logger), e.options.Logger)
	r.away = host
	if err := r.ready(ctx); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// Hold implements [exec.Ganger].
func (e *Executor) Hold(
	ctx context.Context, hosts []exec.Host,
) (held context.Context, found []exec.HostHas, release func(numbers ...int), err error) {
	for _, host := range hosts {
		e.hosts = append(e.hosts, away(host))
	}
	held, cancel := context.WithCancelCause(ctx)
	found = make([]exec.HostHas, len(hosts))
	holds := make([]*holding, len(hosts))
	release = func(numbers ...int) {
		if len(numbers) == 0 {
			cancel(nil)
		}
		for i, h := range holds {
			if h != nil && (len(numbers) == 0 || slices.Contains(numbers, i)) {
				h.release()
			}
		}
	}
	for i := 1; i < len(e.hosts); i++ {
		if holds[i], found[i], err = e.hosts[i].hold(ctx, i); err != nil {
			release()
			return nil, nil, nil, err
		}
		go func() {
			if err := holds[i].await(); err != nil {
				cancel(fmt.Errorf("host %s of the gang is lost: %w", e.hosts[i].Name, err))
			}
		}()
	}
	return held, found, release, nil
}

// holding keeps a host serving for as long as its connection lives.
type holding struct {
	conn     net.Conn
	reader   *bufio.Reader
	released atomic.Bool
}

// hold has a host serve, and says what it has.
func (h *away) hold(ctx context.Context, number int) (*holding, exec.HostHas, error) {
	conn, err := h.greet(ctx, hello{Hold: true})
	if err != nil {
		return nil, exec.HostHas{}, err
	}
	held := &holding{conn: conn, reader: bufio.NewReader(conn)}
	_ = conn.SetReadDeadline(time.Now().Add(holdWait))
	t, err := answered(held.reader)
	if err != nil {
		return nil, exec.HostHas{}, errors.Join(fmt.Errorf("ask host %s of the gang what it has: %w", h.Name, err),
			conn.Close())
	}
	_ = conn.SetReadDeadline(time.Time{})
	has := exec.HostHas{Memory: t.Memory}
	for _, device := range t.Devices {
		device.Host = number
		has.Devices = append(has.Devices, device)
	}
	return held, has, nil
}

// await returns when the host does not serve any more: nil where it was let go of.
func (h *holding) await() error {
	_, err := h.reader.ReadByte() // nothing comes
	if h.released.Load() {
		return nil
	}
	return cmp.Or(err, errors.New("it said something"))
}

func (h *holding) release() {
	h.released.Store(true)
	_ = h.conn.Close()
}

// holdWait is how long a host may take to say what it has.
const holdWait = time.Minute

// exportAway is Export of a stage on another host: the file is brought here once it is written.
func (s *stage) exportAway(ctx context.Context, path string) (func() error, error) {
	name := "export-" + strconv.Itoa(s.number) + "-" + filepath.Base(path)
	id, written := s.runner.number()
	if err := s.call(ctx, "export", map[string]any{"path": name, "written": id}, nil); err != nil {
		s.runner.forget(id)
		return nil, err
	}
	return func() error {
		err := s.runner.await(context.WithoutCancel(ctx), id, written, nil)
		if err == nil {
			err = s.runner.away.get(ctx, name, path)
		}
		if err != nil {
			return fmt.Errorf("part %d on %s: export to %s: %w", s.number, s.name, path, err)
		}
		return nil
	}, nil
}

// importAway is Import of a stage on another host, which the files are brought to before.
func (s *stage) importAway(ctx context.Context, paths []string) error {
	names := make([]string, len(paths))
	for i, path := range paths {
		names[i] = "import-" + strconv.Itoa(i)
		if err := s.runner.away.put(ctx, path, names[i]); err != nil {
			return fmt.Errorf("part %d on %s: import: %w", s.number, s.name, err)
		}
	}
	return s.call(ctx, "import", map[string]any{"paths": names}, nil)
}

// get brings a file that a runner has exported.
func (h *away) get(ctx context.Context, name, path string) (err error) {
	conn, err := h.greet(ctx, hello{Get: name})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // all was read
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	reader := bufio.NewReader(conn)
	t, err := answered(reader)
	if err != nil {
		return fmt.Errorf("bring %s from host %s: %w", name, h.Name, err)
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err = io.CopyN(file, reader, t.Bytes); err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("bring %s from host %s: %w", name, h.Name, err)
	}
	return nil
}

// put brings a file to where a runner imports it.
func (h *away) put(ctx context.Context, path, name string) (err error) {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	info, err := file.Stat()
	if err != nil {
		return err
	}
	conn, err := h.greet(ctx, hello{Put: name, Bytes: info.Size()})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // it was answered
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err = io.CopyN(conn, file, info.Size()); err == nil {
		_, err = answered(bufio.NewReader(conn))
	}
	if err != nil {
		return fmt.Errorf("bring %s to host %s: %w", path, h.Name, err)
	}
	return nil
}

// isAway reports whether some part of a layout is on another host.
func isAway(layout exec.Layout) bool {
	on := func(d exec.Device) bool { return d.Host > 0 }
	return slices.ContainsFunc(layout.Parts, func(p exec.Part) bool {
		return on(p.Device) || slices.ContainsFunc(p.Replicas, on)
	})
}

// interfaceOf is the name of the network interface that has an address.
func interfaceOf(address string) (string, error) {
	wanted := net.ParseIP(address)
	if wanted == nil {
		return "", fmt.Errorf("%q is no IP address", address)
	}
	all, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("look at the network interfaces: %w", err)
	}
	for _, one := range all {
		addresses, err := one.Addrs()
		if err != nil {
			continue // it has just gone
		}
		for _, a := range addresses {
			if network, is := a.(*net.IPNet); is &&
				(network.IP.Equal(wanted) || wanted.IsLoopback() && network.IP.IsLoopback()) {
				return one.Name, nil
			}
		}
	}
	return "", fmt.Errorf("no network interface of this host has the address %s", address)
}
