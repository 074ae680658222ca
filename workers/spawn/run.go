package spawn

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"
)

// ErrStuck is wrapped by the error of [Spawner.Run] when a killed program does not end: it waits for a driver or a disk
// in the kernel, where no signal reaches it.
var ErrStuck = errors.New("it was killed and does not end")

// untilStuck is how long a killed program may take to be gone.
const untilStuck = 10 * time.Second

// Run starts cmd (of [exec.Command]) as Start does and returns when it has ended, with the error of cmd.Wait. When ctx
// ends first, all of its process group is killed, and the error wraps the cause of ctx. One that is not gone ten
// seconds later is left behind, with the goroutine that waits for it: the error wraps ErrStuck, too, and what cmd
// writes to may be written to still. Pipes that what it started keeps open are closed a second after its end, if
// cmd.WaitDelay is not set.
func (s *Spawner) Run(ctx context.Context, cmd *exec.Cmd) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("start %s: %w", cmd.Path, context.Cause(ctx))
	}
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = time.Second
	}
	if err := s.Start(cmd); err != nil {
		return err
	}
	group := cmd.Process.Pid
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return await(ctx, ended, func() { _ = syscall.Kill(-group, syscall.SIGKILL) }, untilStuck) // it may have ended
}

// await waits for the end of a program, which it kills when ctx ends, and gives up on some time after that.
func await(ctx context.Context, ended <-chan error, kill func(), patience time.Duration) error {
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	kill()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-ended: //nolint:errcheck // it was killed, and says so
		return context.Cause(ctx)
	case <-late.C:
		return fmt.Errorf("%w; %w, %s later", context.Cause(ctx), ErrStuck, patience)
	}
}

// Run starts a program that is needed for a while, such as a compiler, as [Spawner.Start] does, and returns when it has
// ended, with the error of cmd.Wait. It ends with this process, on Linux; and with the context that cmd was made with
// (it comes from [exec.CommandContext]) ends all of its process group.
func Run(cmd *exec.Cmd) error {
	s, err := New(Options{})
	if err != nil {
		return err
	}
	defer s.Close()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := s.Start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}
