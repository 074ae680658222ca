package torch_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	spillway "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// gang returns an executor of a model of training.py whose gang has a second host, which has the file elsewhere, and
// what kills that host. Both are on this machine, so that ranks meet on its loopback interface.
func gang(t *testing.T, function, data string) (first *torch.Executor, kill func()) {
	t.Helper()
	python := torchtest.Python2(t)
	elsewhere := t.TempDir()
	text, err := os.ReadFile("testdata/training.py")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(elsewhere, "same.py"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	second, err := torch.New(torch.Options{
		Python: python, Model: filepath.Join(elsewhere, "same.py") + ":" + function, Data: data, Repeats: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context())) // it serves until the end
	served := make(chan error, 1)
	go func() {
		served <- second.Serve(ctx, spillway.ServeOptions{
			Listener: listener, Address: "127.0.0.1", Directory: t.TempDir(), Patience: time.Minute,
			Devices: []spillway.Device{{ID: "cpu-0", Threads: 1}},
		})
	}()
	first, err = torch.New(torch.Options{
		Python: python, Model: "testdata/training.py:" + function, Data: data, Repeats: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	_, found, release, err := first.Hold(t.Context(), []spillway.Host{{Name: "one", Address: "127.0.0.1"}, {
		Name: "two", Address: "127.0.0.1",
		Dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", listener.Addr().String())
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 2 || len(found[1].Devices) != 1 || found[1].Devices[0].Host != 1 {
		t.Fatalf("the hosts have %+v; want one device on the second", found)
	}
	killed := errors.New("the host was killed")
	t.Cleanup(func() {
		release()
		if err := <-served; err != nil && !errors.Is(err, killed) {
			t.Errorf("the second host: %v", err)
		}
	})
	return first, func() { cancel(killed) }
}

// onTwo puts every second replica of a layout on the second host.
func onTwo(l spillway.Layout) spillway.Layout {
	for i := range l.Parts {
		own := l.Parts[i].Device
		for r := 1; r < l.Replicas; r++ {
			device := own
			device.Host = r % 2
			l.Parts[i].Replicas = append(l.Parts[i].Replicas, device)
		}
	}
	return l
}

// TestReplicasOnTwoHostsLearnAsOnOne compares every bit of the losses, goes on from a checkpoint that both hosts have
// written on one of them, and kills one.
func TestReplicasOnTwoHostsLearnAsOnOne(t *testing.T) {
	t.Parallel()
	e, kill := gang(t, "mlp", "points")
	one := load(t, e, replicated(2, spillway.ShardOptimizer))
	want := wholeSteps(t, one, 0, 8)
	two := load(t, e, onTwo(replicated(2, spillway.ShardOptimizer)))
	if got := wholeSteps(t, two, 0, 4); !slices.Equal(got, want[:4]) {
		t.Errorf("losses on two hosts are %v; want those of one, %v", got, want[:4])
	}
	paths := export(t, two)
	for _, onward := range []spillway.Layout{
		onTwo(replicated(2, spillway.ShardOptimizer)), replicated(2, spillway.ShardOptimizer),
	} {
		again := load(t, e, onward)
		for _, s := range again.Stages() {
			if err := s.Import(t.Context(), paths); err != nil {
				t.Fatal(err)
			}
		}
		if got := wholeSteps(t, again, 4, 8); !slices.Equal(got, want[4:]) {
			t.Errorf("losses from the checkpoint on are %v; want those of one host, %v", got, want[4:])
		}
	}
	kill()
	began := time.Now()
	_, err := two.(spillway.Stepper).Step(t.Context(), 4)
	if err == nil || !strings.Contains(err.Error(), "of two") || !strings.Contains(err.Error(), "host two") {
		t.Errorf("a step beside a killed host ended with %v; want the host named", err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %s to know of a killed host", took)
	}
}

// TestPartsOnTwoHostsLearnAsOneProcess has the parts of a replica on different hosts, and measures what a link takes.
func TestPartsOnTwoHostsLearnAsOneProcess(t *testing.T) {
	t.Parallel()
	e, _ := gang(t, "mlp", "points")
	device := spillway.Device{ID: "cpu-0", Threads: 1}
	probe, err := e.Probe(t.Context(), spillway.ProbeOptions{Samples: 4, Device: device})
	if err != nil {
		t.Fatal(err)
	}
	one := replicated(1, "")
	want := train(t, load(t, e, one), one, 6)
	l := replicated(1, "", cutOperations(t, probe, "relu")...)
	l.Parts[1].Device.Host = 1
	alike(t, "parts on two hosts", want, wholeSteps(t, load(t, e, l), 0, 6), 1e-5)
	away := device
	away.Host = 1
	link, err := e.Exchange(t.Context(), []spillway.Device{device, away})
	if err != nil {
		t.Fatal(err)
	}
	if link.Ranks != 2 || link.AllReduce.At(1<<20) <= 0 {
		t.Errorf("the link between two hosts was measured as %+v", link)
	}
}
