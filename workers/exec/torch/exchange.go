package torch

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
)

var _ exec.Exchanger = (*Executor)(nil)

// exchanged is what a rank has measured.
type exchanged struct {
	Process   quantity.Bytes `json:"process"`
	Scratch   float64        `json:"scratch"`
	Step      float64        `json:"step"`
	Hidden    float64        `json:"hidden"`
	AllReduce [2]float64     `json:"all_reduce"`
	Gather    [2]float64     `json:"gather"`
	Scatter   [2]float64     `json:"scatter"`
	Send      [2]float64     `json:"send"`
}

// Exchange has a process on each device meet the others as replicas do, and measures what they send each other. It
// takes a second, and most of that for processes to begin.
func (e *Executor) Exchange(ctx context.Context, devices []exec.Device) (exec.Exchange, error) {
	found, err := e.exchange(ctx, devices)
	if err != nil {
		return found, fmt.Errorf("measure what %d replicas exchange: %w", len(devices), err)
	}
	return found, nil
}

func (e *Executor) exchange(ctx context.Context, devices []exec.Device) (exec.Exchange, error) {
	if len(devices) < 2 {
		return exec.Exchange{}, fmt.Errorf("%d devices; want two at least", len(devices))
	}
	p := &ranks{parts: 1, all: make([]*rank, len(devices))}
	defer func() { _ = p.Close() }()
	layout := exec.Layout{Parts: []exec.Part{{Device: devices[0], Replicas: devices[1:]}}}
	errs := make([]error, len(devices))
	var starting sync.WaitGroup
	for i, device := range devices {
		p.all[i] = &rank{of: p, replica: i, host: device.Host, stage: &stage{name: e.nameOf(device)}}
		starting.Go(func() { p.all[i].runner, errs[i] = e.start(ctx, device, nil) })
	}
	starting.Wait()
	for i, err := range errs {
		if err != nil { // the others say the same, or were ended
			return exec.Exchange{}, fmt.Errorf("%v: %w", p.all[i], err)
		}
	}
	names, threads := make([]string, len(devices)), make([]int, len(devices))
	for i, device := range devices {
		names[i], threads[i] = deviceName(device), device.Threads
	}
	if p.all[0].host != 0 {
		return exec.Exchange{}, errors.New("the first device is on another host; begin with one of this host")
	}
	host, network, err := e.meetingOf(layout)
	if err != nil {
		return exec.Exchange{}, err
	}
	var port int
	if err := p.all[0].runner.call(ctx, "serve_exchange", map[string]any{
		"host": host, "timeout": usualTimeout.Seconds(),
	}, &port); err != nil {
		return exec.Exchange{}, fmt.Errorf("%v: make the store at which ranks meet: %w", p.all[0], err)
	}
	answers := make([]exchanged, len(devices))
	if err := p.together(ctx, "exchange", map[string]any{
		"host": host, "interface": network, "port": port, "timeout": usualTimeout.Seconds(), "backend": p.backend(layout),
		"devices": names, "threads": threads,
	}, func(i int) any { return &answers[i] }); err != nil {
		return exec.Exchange{}, err
	}
	return slowest(answers), nil
}

// slowest is what all ranks together take: they wait for each other.
func slowest(all []exchanged) exec.Exchange {
	found := exec.Exchange{Ranks: len(all), Hidden: 1}
	raise := func(to *exec.Transfer, measured [2]float64) {
		to.Fixed, to.EachByte = max(to.Fixed, measured[0]), max(to.EachByte, measured[1])
	}
	for _, a := range all {
		found.Process, found.Scratch = max(found.Process, a.Process), max(found.Scratch, a.Scratch)
		found.Step, found.Hidden = max(found.Step, a.Step), min(found.Hidden, a.Hidden)
		raise(&found.AllReduce, a.AllReduce)
		raise(&found.Gather, a.Gather)
		raise(&found.Scatter, a.Scatter)
		raise(&found.Send, a.Send)
	}
	return found
}
