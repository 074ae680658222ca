package torch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// Serve implements [exec.Ganger].
func (e *Executor) Serve(ctx context.Context, o exec.ServeOptions) error {
	name, err := interfaceOf(o.Address)
	if err != nil {
		return fmt.Errorf("serve a gang: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	m := &member{executor: e, options: o, network: name, end: cancel, arenas: map[string]*os.File{}}
	m.first = time.AfterFunc(o.Patience, func() {
		cancel(fmt.Errorf("%w: it did not connect for %s", exec.ErrLeft, o.Patience))
	})
	stop := context.AfterFunc(ctx, func() { _ = o.Listener.Close() })
	defer stop()
	var serving sync.WaitGroup
	for {
		conn, err := o.Listener.Accept()
		if err != nil {
			cancel(fmt.Errorf("serve a gang: %w", err)) // unless it was ended before, which closes the listener
			break
		}
		serving.Go(func() { m.serve(ctx, conn) })
	}
	serving.Wait()
	m.first.Stop()
	for _, arena := range m.arenas {
		_ = arena.Close()
	}
	if cause := context.Cause(ctx); !errors.Is(cause, errReleased) {
		return cause
	}
	return nil
}

// errReleased ends what was served to its end.
var errReleased = errors.New("the first host of the gang has let go")

// member serves the first host of a gang.
type member struct {
	executor *Executor
	options  exec.ServeOptions
	network  string // the name of the interface with the address
	end      context.CancelCauseFunc
	first    *time.Timer // ends it where nobody comes

	mu     sync.Mutex
	arenas map[string]*os.File // by session
}

// serve answers one connection.
func (m *member) serve(ctx context.Context, conn net.Conn) {
	defer func() { _ = conn.Close() }() // who is there has heard all
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	reader := bufio.NewReader(conn)
	line, err := reader.ReadBytes('\n')
	var what hello
	if err == nil {
		err = json.Unmarshal(line, &what)
	}
	if err != nil {
		return // it is none of the gang, or has gone
	}
	switch {
	case what.Start != nil:
		m.run(ctx, conn, reader, *what.Start)
	case what.Hold:
		m.hold(conn, reader)
	case what.Get != "":
		err = m.send(conn, what.Get)
	case what.Put != "":
		err = m.receive(conn, reader, what.Put, what.Bytes)
	}
	if err != nil {
		_ = answerHello(conn, told{Error: err.Error()}) // it has gone, if not
	}
}

func answerHello(conn net.Conn, t told) error {
	line, err := json.Marshal(t)
	if err == nil {
		_, err = conn.Write(append(line, '\n'))
	}
	return err
}

// hold serves until the connection ends.
func (m *member) hold(conn net.Conn, reader *bufio.Reader) {
	if !m.first.Stop() {
		return
	}
	if err := answerHello(conn, told{Devices: m.options.Devices, Memory: m.options.Memory}); err == nil {
		_, _ = reader.ReadByte() // nothing comes
	}
	m.end(errReleased)
}

// place is where a file of a runner is here: one for each name, whoever asks.
func (m *member) place(name string) (string, error) {
	if !filepath.IsLocal(name) || strings.ContainsAny(name, `/\`) {
		return "", fmt.Errorf("%q is no plain name of a file", name)
	}
	return filepath.Join(m.options.Directory, name), nil
}

// send sends a file that a runner has exported, and removes it.
func (m *member) send(conn net.Conn, name string) error {
	path, err := m.place(name)
	if err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(file.Close(), os.Remove(path)) }() // the directory goes at the end
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if err := answerHello(conn, told{Bytes: info.Size()}); err == nil {
		_, _ = io.CopyN(conn, file, info.Size()) // whoever misses something says so
	}
	return nil
}

// receive takes a file that runners import.
func (m *member) receive(conn net.Conn, reader io.Reader, name string, bytes int64) error {
	path, err := m.place(name)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(m.options.Directory, "put-")
	if err != nil {
		return err
	}
	_, err = io.CopyN(file, reader, bytes)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path) // two ranks may be brought the same
	}
	if err != nil {
		return err
	}
	return answerHello(conn, told{})
}

// arena is the memory that the runners of a session share; that of another session goes when nobody has it open.
func (m *member) arena(start startAway) (*arena, error) {
	if start.Session == "" {
		return nil, nil //nolint:nilnil // it shares none
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if file, there := m.arenas[start.Session]; there {
		return &arena{file: file}, nil
	}
	made, err := makeArena(start.Parts)
	if err != nil {
		return nil, err
	}
	for session, file := range m.arenas {
		_ = file.Close()
		delete(m.arenas, session)
	}
	m.arenas[start.Session] = made.file
	return made, nil
}

// run starts a runner and hands on what it is asked and answers, until one of both ends.
func (m *member) run(ctx context.Context, conn net.Conn, reader *bufio.Reader, start startAway) {
	to := &onward{conn: conn}
	shared, err := m.arena(start)
	var r *runner
	if err == nil {
		r, err = m.executor.start(ctx, exec.Device{Threads: start.Threads, CPUs: start.CPUs}, shared)
	}
	if err != nil {
		var of *ModelError
		if !errors.As(err, &of) {
			of = &ModelError{Kind: "runner", Message: err.Error()}
		}
		to.write(map[string]any{"id": readyID, "error": of})
		return
	}
	to.write(map[string]any{"id": readyID, "result": map[string]any{}})
	var asked sync.WaitGroup
	go func() {
		select {
		case <-r.gone: // what it has answered comes before
			asked.Wait()
			to.write(map[string]any{"ended": r.why.Error()})
			_ = conn.Close()
		case <-ctx.Done():
		}
	}()
	lines := bufio.NewScanner(reader)
	lines.Buffer(nil, mostAnswer)
	for lines.Scan() {
		var request map[string]json.RawMessage
		if json.Unmarshal(lines.Bytes(), &request) != nil {
			break
		}
		m.hand(ctx, r, request, to, &asked)
	}
	r.close()
	asked.Wait()
}

// onward writes lines to the first host.
type onward struct {
	mu   sync.Mutex
	conn net.Conn
}

func (o *onward) write(message any) {
	line, err := json.Marshal(message)
	if err != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = o.conn.Write(append(line, '\n')) // who is gone needs no answer
}

// hand hands one request on, as it must be here, and its answer back.
func (m *member) hand(
	ctx context.Context, r *runner, request map[string]json.RawMessage, to *onward, asked *sync.WaitGroup,
) {
	own, err := m.translated(request)
	id := string(request["id"])
	if err != nil {
		to.write(map[string]any{"id": json.RawMessage(id), "error": ModelError{Kind: "runner", Message: err.Error()}})
		return
	}
	var command string
	_ = json.Unmarshal(request["command"], &command) // an unknown one is refused there
	if later, waits := request["written"]; waits {
		number, answers := r.number()
		own["written"] = number
		asked.Go(func() { m.answer(to, later, r.awaitAnswer(answers)) })
	}
	asked.Go(func() {
		var result json.RawMessage
		err := r.call(ctx, command, own, &result)
		m.answer(to, json.RawMessage(id), outcomeOf(result, err))
	})
}

// awaitAnswer waits for an answer, or the end of the process.
func (r *runner) awaitAnswer(answers chan answer) answer {
	select {
	case got := <-answers:
		return got
	case <-r.gone:
		return answer{Error: &ModelError{Kind: "runner", Message: r.why.Error()}}
	}
}

func outcomeOf(result json.RawMessage, err error) answer {
	var of *ModelError
	switch {
	case err == nil:
		return answer{Result: result}
	case errors.As(err, &of):
		return answer{Error: of}
	default:
		return answer{Error: &ModelError{Kind: "runner", Message: err.Error()}}
	}
}

// answer hands an answer back. That of a process that has ended is how it ended, which comes by itself.
func (m *member) answer(to *onward, id json.RawMessage, a answer) {
	if a.Error != nil && a.Error.Kind == "runner" {
		return
	}
	to.write(map[string]any{"id": id, "result": a.Result, "error": a.Error})
}

// translated is a request as it must be on this host: its files are elsewhere.
func (m *member) translated(request map[string]json.RawMessage) (map[string]any, error) {
	own := make(map[string]any, len(request))
	for name, value := range maps.All(request) {
		own[name] = value
	}
	if _, names := request["file"]; names {
		file, _, err := m.executor.options.locate()
		if err != nil {
			return nil, err
		}
		own["file"], own["data"], own["validation"] = file, m.executor.options.Data, m.executor.options.Validation
		if _, at := request["data_cpus"]; at { // those that are left to it there are not those of here
			allowed, err := spawn.AllowedCPUs()
			if err != nil {
				return nil, err
			}
			own["data_cpus"] = allowed
		}
	}
	if _, meets := request["backend"]; meets {
		own["interface"] = m.network
	}
	if text, at := request["path"]; at {
		var name string
		if err := json.Unmarshal(text, &name); err != nil {
			return nil, err
		}
		path, err := m.place(name)
		if err != nil {
			return nil, err
		}
		own["path"] = path
	}
	if text, at := request["paths"]; at {
		var names []string
		if err := json.Unmarshal(text, &names); err != nil {
			return nil, err
		}
		for i, name := range names {
			path, err := m.place(name)
			if err != nil {
				return nil, err
			}
			names[i] = path
		}
		own["paths"] = names
	}
	return own, nil
}
