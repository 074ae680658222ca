package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/device"
)

// slowDriver does not answer before it is told to.
type slowDriver struct {
	*cards
	awake chan struct{}
}

func (d slowDriver) Read(ctx context.Context) (device.Reading, error) {
	select {
	case <-d.awake:
	case <-ctx.Done():
		return device.Reading{}, ctx.Err()
	}
	return d.cards.Read(ctx)
}

// A driver that sets its GPUs up for a minute keeps nobody waiting but who wants a GPU.
func TestAHostStartsBeforeItsDriverHasAnswered(t *testing.T) {
	t.Parallel()
	driver := slowDriver{newCards(1, 80*quantity.GiB), make(chan struct{})}
	h := startUnasked(t, 2, func(o *Options) {
		o.GPUs, o.PricePerHour = driver, quantity.USD
		o.GPUPrice = func(class string) quantity.Money { return 6 * quantity.USD * quantity.Money(len(class)) }
	})
	if host := h.agent.Host(); !host.GPUsUnknown || len(host.GPUs) > 0 || host.Capacity.GPU != 0 ||
		host.PricePerHour != quantity.USD {
		t.Errorf("before: %+v", host)
	}
	if out, _ := h.done(t, order{Do: "environment"}); !slices.Contains(out.Env, "CUDA_VISIBLE_DEVICES=") {
		t.Errorf("who asks for none: %v", out.Env)
	}
	h.obeyed(placement(2, asking(quantity.GPUs{Count: 1})))
	task := h.submit(t, order{Do: "environment"}, func(task *wire.Task) { task.ID = "score-gpu" })
	awaitTrue(t, func() bool { return h.agent.Running() == 1 })
	close(driver.awake)
	if out, _ := decoded(t, h, task); !slices.Contains(out.Env, "CUDA_VISIBLE_DEVICES=GPU-0") {
		t.Errorf("who asks for one: %v", out.Env)
	}
	host := h.agent.Host()
	if host.GPUsUnknown || host.Capacity.GPU != quantity.Core || len(task.Failures()) > 0 {
		t.Errorf("after: %+v, %v", host, task.Failures())
	}
	if want := quantity.USD + 6*quantity.USD*quantity.Money(len(host.Capacity.DeviceClass)); host.PricePerHour != want {
		t.Errorf("with a GPU of class %s it costs %s an hour, want %s", host.Capacity.DeviceClass, host.PricePerHour, want)
	}
}

// A driver may be loaded while the engine runs: its GPUs are offered, and processes that were told nothing of GPUs,
// as there were none, serve nobody any more.
func TestGPUsThatAppearAreOffered(t *testing.T) {
	t.Parallel()
	driver := newCards(2, 80*quantity.GiB)
	states := driver.states
	driver.states, driver.err = nil, fmt.Errorf("%w: there is no NVIDIA driver", device.ErrNone)
	h := start(t, 1, driver.on)
	visible := func(of report) string {
		for _, pair := range of.Env {
			if name, value, _ := strings.Cut(pair, "="); name == "CUDA_VISIBLE_DEVICES" {
				return value
			}
		}
		return "unset"
	}
	before, _ := h.done(t, order{Do: "environment"})
	if got := visible(before); got != "unset" || h.agent.Host().Capacity.GPU != 0 {
		t.Errorf("without a driver: %q, %s", got, h.agent.Host().Capacity)
	}
	driver.mu.Lock()
	driver.states, driver.err = states[:1], nil
	driver.mu.Unlock()
	look(t, h)
	h.obeyed(placement(1, predictor.Sizing{Stage: stage, Base: of(1, 64)}))
	after, _ := h.done(t, order{Do: "environment"})
	if got := visible(after); got != "" || after.PID == before.PID {
		t.Errorf("with one: process %d (before: %d) sees %q", after.PID, before.PID, got)
	}
	driver.replace(states)
	look(t, h)
	want := quantity.Size{GPU: 2 * quantity.Core, GPUMemory: 160 * quantity.GiB, DeviceClass: "h100"}
	host := h.agent.Host()
	if got := (quantity.Size{
		GPU: host.Capacity.GPU, GPUMemory: host.Capacity.GPUMemory, DeviceClass: host.Capacity.DeviceClass,
	}); got != want || len(host.GPUs) != 2 || host.Free != host.Capacity {
		t.Errorf("%s, free %s, of %+v", got, host.Free, host.GPUs)
	}
	h.obeyed(placement(1, asking(quantity.GPUs{Count: 2})))
	if out, _ := h.done(t, order{Do: "environment"}); visible(out) != "GPU-0,GPU-1" {
		t.Errorf("%q", visible(out))
	}
	driver.mu.Lock()
	driver.states, driver.err = nil, fmt.Errorf("%w: its kernel driver is not loaded", device.ErrNone)
	driver.mu.Unlock()
	_ = h.agent.gpus.look(t.Context()) // the driver was unloaded
	if host := h.agent.Host(); host.Capacity.GPU != 0 || host.GPUs[0].Wrong != "is not there any more" {
		t.Errorf("without the driver: %+v", host)
	}
}

func look(t *testing.T, h *host) {
	t.Helper()
	if err := h.agent.gpus.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.agent.gpus.tell(t.Context(), nil)
}

// A GPU that is cut is another device: its instances take its place, once no attempt has it, and the other way round.
func TestAnotherLayoutOfInstancesIsOffered(t *testing.T) {
	t.Parallel()
	driver := newCards(1, 80*quantity.GiB)
	g := known(t, driver)
	whole := driver.states
	cut := slices.Repeat(whole, 2)
	for i := range cut {
		cut[i].UUID, cut[i].Instance, cut[i].Class = fmt.Sprintf("MIG-%d", i), i, "h100-3g.40gb"
		cut[i].Memory, cut[i].Free = 40*quantity.GiB, 40*quantity.GiB
	}
	hold, err := g.take(t.Context(), device.Need{Count: 1}, predictor.GPUHolder{})
	if err != nil {
		t.Fatal(err)
	}
	steps := []struct {
		states []device.State
		held   bool
		want   string // the capacity
	}{
		{cut, true, "0 cores, 0 B"}, // nothing works that is offered, and of another class nothing is
		{cut, false, "0 cores, 0 B, 2 GPU with 80 GiB on h100-3g.40gb"},
		{whole, false, "0 cores, 0 B, 1 GPU with 80 GiB on h100"},
		{cut[:1], false, "0 cores, 0 B, 1 GPU with 40 GiB on h100-3g.40gb"},
		{cut, false, "0 cores, 0 B, 2 GPU with 80 GiB on h100-3g.40gb"},
		{cut[1:], false, "0 cores, 0 B, 1 GPU with 40 GiB on h100-3g.40gb"},
	}
	for i, step := range steps {
		if !step.held {
			g.give(hold)
		}
		driver.replace(step.states)
		if err := g.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, _ := g.usable(quantity.Size{}); got.String() != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
	if got := g.describe(); len(got) != 1 || got[0].UUID != "MIG-1" {
		t.Errorf("%+v", got)
	}
}

// What a program holds between two looks is in the driver's own account.
func TestAPeakBetweenTwoLooksIsInTheDriversAccount(t *testing.T) {
	t.Parallel()
	for _, accounts := range []bool{true, false} {
		driver := newCards(1, 80*quantity.GiB)
		driver.states[0].Accounts = accounts
		h, _, _ := startWithStore(t, 1, driver.on)
		h.obeyed(placement(1, asking(quantity.GPUs{Count: 1})))
		dir := t.TempDir()
		task := h.command(t, "a", shell(`echo $$ >"`+dir+`/new"; mv "`+dir+`/new" "`+dir+`/pid"
			until [ -e "`+dir+`/enough" ]; do sleep 0.01; done`), nil)
		pid := awaitPID(t, filepath.Join(dir, "pid"))
		driver.hold(0, pid, 3*quantity.GiB)
		awaitTrue(t, func() bool { return h.agent.Host().GPUs[0].Used == 3*quantity.GiB })
		driver.mu.Lock()
		driver.accounts = map[string][]device.Account{"GPU-0": {{PID: pid, Peak: 60 * quantity.GiB, From: time.Hour}}}
		driver.mu.Unlock()
		release(t, filepath.Join(dir, "enough"))
		if _, err := task.Wait(t); err != nil {
			t.Fatal(err)
		}
		want := 3 * quantity.GiB
		if accounts {
			want = 60 * quantity.GiB
		}
		if usage := h.records()[0].Usage; usage.GPUPeakMemory != want || usage.GPUPeakAccounted != accounts {
			t.Errorf("accounts %t: a peak of %s, accounted %t", accounts, usage.GPUPeakMemory, usage.GPUPeakAccounted)
		}
	}
}

func TestLooksAtGPUsTakeAHundredthOfTheTime(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{
		0: soonestGPULook, time.Millisecond: soonestGPULook, 4 * time.Millisecond: 400 * time.Millisecond,
		time.Second: time.Second,
	} {
		if got := pauseAfter(took, time.Second); got != want {
			t.Errorf("after a look of %s: %s, want %s", took, got, want)
		}
	}
	if got := pauseAfter(0, 10*time.Millisecond); got != 10*time.Millisecond {
		t.Errorf("more often than samples: %s", got)
	}
}
