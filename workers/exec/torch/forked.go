package torch

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/workers/procfs"
)

// forked is a process that a fork server has forked.
type forked struct {
	server   *forkServer
	pid      int
	ended    chan answer
	printed  *os.File
	printing chan struct{} // closed when what it prints is read

	end struct {
		Code   *int            `json:"code"`
		Signal *syscall.Signal `json:"signal"`
	}
}

func (p *forked) number() int { return p.pid }
func (p *forked) kill()       { _ = syscall.Kill(-p.pid, syscall.SIGKILL) }

// awaitExit returns also when the server has ended: the system kills its children then.
func (p *forked) awaitExit() {
	select {
	case told := <-p.ended:
		_ = json.Unmarshal(told.Result, &p.end) // what it cannot be told is told as unknown
	case <-p.server.gone:
		for runs(p.pid) { // it was killed with the server, and hangs
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// runs reports whether a process is there and has not ended: one that has may wait for an init that collects nobody.
// Where the system does not tell, none runs.
func runs(pid int) bool {
	p, there := procfs.Read(pid)
	return there && !p.Ended()
}

func (p *forked) collect() string {
	_ = p.server.call(context.Background(), "collect", map[string]any{"process": p.pid}, nil) // else the server is gone
	_, _ = before(p.printing, exitGrace)
	switch {
	case p.end.Code != nil:
		return fmt.Sprintf("exit status %d", *p.end.Code)
	case p.end.Signal != nil:
		return "signal: " + p.end.Signal.String()
	default:
		return "killed with the process that it was forked from, which ended: " + p.server.why.Error()
	}
}

func (p *forked) release() {
	_ = p.printed.SetDeadline(time.Unix(1, 0)) // what has left the group may hold it open
	<-p.printing
	_ = p.printed.Close()
	p.server.less(func() { p.server.children-- })
}
