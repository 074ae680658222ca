package engine

import (
	"cmp"
	"context"
	"errors"
	"os"
	"runtime"
	"slices"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/agent"
	"github.com/spillway-ml/spillway/workers/device"
	"github.com/spillway-ml/spillway/workers/function"
	"github.com/spillway-ml/spillway/workers/spill"
)

// venues is where tasks run: the pool of this host, and functions.
type venues struct {
	*reports

	agent     *agent.Agent
	functions predictor.FunctionVenue
	local     *function.Host // nil when functions are off, or run elsewhere
}

// openVenues starts the pool and what spills to functions.
func openVenues(ctx context.Context, r *reports) (*venues, error) {
	v := &venues{reports: r}
	if err := v.startPool(ctx); err != nil {
		return nil, err
	}
	if !v.config.Functions.Enabled {
		return v, nil
	}
	functions, err := v.openFunctions(ctx)
	if err != nil {
		return nil, err
	}
	spilling, err := spill.New(spill.Options{
		Host: hostName(), StateDir: v.config.StateDir, Client: v.temporal, Functions: functions,
		Recorder: v.recorder, Started: v.recorder.Started,
		// Elsewhere a process outlives its parent: see package spawn.
		Local:   v.local != nil && runtime.GOOS == "linux",
		Results: v.results, Plans: v.plans, Venue: v.functions, Output: v.openOutput,
		Now: v.config.HostClock, Logger: v.logger,
	})
	if err != nil {
		return nil, err
	}
	v.work("spill", spilling.Run)
	return v, nil
}

// startPool starts what runs tasks on this host.
func (v *venues) startPool(ctx context.Context) (err error) {
	config := v.config
	host := hostName()
	offered, readGPUs := v.offeredGPUs(ctx)
	v.agent, err = agent.New(agent.Options{
		Host: host, StateDir: config.StateDir, Enforcement: config.Limits,
		Capacity: quantity.Size{Memory: config.PoolMemory}, CPUs: config.PoolCPUs, PricePerHour: config.HostPrice,
		GPUs: offered, ReadGPUs: readGPUs,
		Client: v.temporal, ArtifactsURL: config.artifactsURL(),
		User: config.StageUser, Builds: stageBuilds{v.builds, config.StageUser},
		Store: v.store, Superseded: v.space.Superseded, Declared: v.declared, Results: v.results, Plans: v.plans,
		Output:    v.openOutput,
		Inventory: v.tellHost, Recorder: v.recorder, Held: v.recorder.Held, Started: v.recorder.Started,
		Now: config.HostClock, Logger: v.logger,
	})
	if err != nil {
		return err
	}
	v.onClose("the lease of this host", func(ctx context.Context) error { return v.leases.DropHost(ctx, host) })
	v.work("pool", v.agent.Run)
	return nil
}

// tellHost shows how this host stands, and puts it where the leader looks.
func (v *venues) tellHost(ctx context.Context, host predictor.Host) error {
	v.observer.metrics.SetGPUs(host)
	return v.leases.PutHost(ctx, host)
}

// offeredGPUs are the GPUs of this host that attempts may have: those that CUDA_VISIBLE_DEVICES leaves to this process,
// and of these those of one model. Read tells how they stand; nil where there is no driver.
func (v *venues) offeredGPUs(ctx context.Context) (
	offered []device.State, read func(context.Context) (device.Reading, error),
) {
	reader := device.Open()
	v.onClose("the driver of the GPUs", func(context.Context) error { return reader.Close() })
	reading, err := reader.Read(ctx)
	switch {
	case errors.Is(err, device.ErrNone):
		v.logger.DebugContext(ctx, "no GPU", "reason", err)
		return nil, nil
	case err != nil:
		v.logger.WarnContext(ctx, "stages get no GPU: the driver does not tell of any", "error", err)
		return nil, reader.Read
	}
	seen := reading.Devices
	if value, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); set {
		if number := device.Ambiguous(seen, value, os.Getenv("CUDA_DEVICE_ORDER")); number != "" {
			v.logger.WarnContext(ctx, "stages get no GPU: CUDA_VISIBLE_DEVICES names one of several models by a number, and "+
				"CUDA counts from the fastest on", "number", number, "gpus", len(seen),
				"hint", "give UUIDs, as nvidia-smi -L lists them, or set CUDA_DEVICE_ORDER=PCI_BUS_ID")
			return nil, reader.Read
		}
		if missing := device.Missing(seen, value); missing != "" {
			v.logger.WarnContext(ctx, "CUDA_VISIBLE_DEVICES names a GPU that is not there; those after it are not offered",
				"name", missing, "gpus", len(seen), "hint", "nvidia-smi -L lists numbers and UUIDs")
		}
		seen = device.Visible(seen, value)
	}
	offered = device.Offer(seen)
	for _, d := range seen {
		if !slices.ContainsFunc(offered, func(o device.State) bool { return o.UUID == d.UUID }) {
			v.logger.WarnContext(ctx, "a GPU is not offered to stages", "gpu", d.Label(), "name", d.Name,
				"reason", cmp.Or(d.Wrong, "a host offers those of one model, that of which it has most"))
		}
	}
	return offered, reader.Read
}

// hostName is the name of this host.
func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return name
}

// prices are those in force on this engine.
func (v *venues) prices() *wire.Prices {
	host := v.agent.Host()
	prices := wire.Prices{HostPerHour: host.PricePerHour, HostCapacity: host.Capacity}
	if v.functions.Enabled {
		prices.FunctionPerGiBSecond, prices.FunctionPerRequest = v.functions.PerGiBSecond, v.functions.PerRequest
	}
	return &prices
}
