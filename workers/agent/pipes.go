package agent

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/workers/spawn"
)

// pipes carry what a program of another user prints. They are that user's, so that the program can open them by
// their paths, as in `tee /dev/stderr`; those that exec.Cmd makes are this process's.
type pipes struct {
	ours, theirs []*os.File
	copying      sync.WaitGroup
}

// newPipes gives cmd pipes of user for its standard output and error in place of the writers that it has. Copying
// ends with close.
func newPipes(cmd *exec.Cmd, user *spawn.User) (*pipes, error) {
	p := &pipes{}
	for _, stream := range []*io.Writer{&cmd.Stdout, &cmd.Stderr} {
		ours, theirs, err := os.Pipe()
		if err != nil {
			p.close()
			return nil, fmt.Errorf("make a pipe for output: %w", err)
		}
		p.ours, p.theirs = append(p.ours, ours), append(p.theirs, theirs)
		if err := theirs.Chown(user.UID, user.GID); err != nil {
			p.close()
			return nil, fmt.Errorf("make a pipe for output: %w", err)
		}
		to := *stream
		p.copying.Go(func() { _, _ = io.Copy(to, ours) }) // it ends with the program, or at the deadline that close sets
		*stream = theirs
	}
	return p, nil
}

// started closes the program's ends, which it has now, or never will. A nil pipes has none.
func (p *pipes) started() {
	if p == nil {
		return
	}
	for _, file := range p.theirs {
		_ = file.Close() // close waits no longer for it than for a program that keeps it
	}
	p.theirs = nil
}

// close reads what is there still, at most for a moment: a process that is no more in the program's group may hold
// the pipes open. A nil pipes has nothing.
func (p *pipes) close() {
	if p == nil {
		return
	}
	p.started()
	for _, file := range p.ours {
		_ = file.SetReadDeadline(time.Now().Add(exitGrace)) // pipes have deadlines
	}
	p.copying.Wait()
	for _, file := range p.ours {
		_ = file.Close() // it was only read
	}
	p.ours = nil
}
