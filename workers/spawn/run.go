package spawn

import (
	"os/exec"
	"syscall"
)

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
