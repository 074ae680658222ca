package spawn

import (
	"context"
	"errors"
	"os/exec"
	"testing"
	"time"
)

func TestAProgramThatNoSignalReachesIsGivenUp(t *testing.T) {
	t.Parallel()
	late := errors.New("it was late")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(late)
	killed := 0
	err := await(ctx, make(chan error), func() { killed++ }, time.Nanosecond)
	if !errors.Is(err, ErrStuck) || !errors.Is(err, late) || killed != 1 {
		t.Errorf("%v, killed %d times; want that it is stuck, why it was killed, and once", err, killed)
	}
	ended := make(chan error, 1)
	err = await(ctx, ended, func() { ended <- errors.New("signal: killed") }, time.Hour)
	if !errors.Is(err, late) || errors.Is(err, ErrStuck) {
		t.Errorf("one that ends: %v; want %v alone", err, late)
	}
}

func TestRunEndsAProgramWithItsContextAndAllOfItsGroup(t *testing.T) {
	t.Parallel()
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Run(t.Context(), exec.Command("true")); err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if err := s.Run(t.Context(), exec.Command("sh", "-c", "exit 3")); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("%v; want its exit code", err)
	}
	late := errors.New("it was late")
	ctx, cancel := context.WithCancelCause(t.Context())
	cmd := exec.Command("sh", "-c", "sleep 1000 & echo started; wait")
	started := make(chan struct{})
	cmd.Stdout = writer(func() { close(started) })
	go func() {
		<-started
		cancel(late)
	}()
	if err := s.Run(ctx, cmd); !errors.Is(err, late) || errors.Is(err, ErrStuck) {
		t.Errorf("%v; want %v", err, late)
	}
	if err := s.Run(ctx, exec.Command("true")); !errors.Is(err, late) {
		t.Errorf("begun with an ended context: %v; want %v", err, late)
	}
}

// writer tells of the one write that there is.
type writer func()

func (w writer) Write(data []byte) (int, error) {
	w()
	return len(data), nil
}
