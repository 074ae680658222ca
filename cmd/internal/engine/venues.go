package engine

import (
	"context"
	"os"
	"runtime"

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

	agent     *agent.Agent // nil without a pool
	functions predictor.FunctionVenue
	place     string         // of artifacts, by which functions are told from those of other engines
	runner    runner         // what runs commands as functions; zero where none do
	local     *function.Host // nil when functions are off, or run elsewhere
}

// openVenues starts the pool and what spills to functions.
func openVenues(ctx context.Context, r *reports) (*venues, error) {
	v := &venues{reports: r}
	if !v.config.NoPool {
		if err := v.startPool(); err != nil {
			return nil, err
		}
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
		Results: v.results, Plans: v.plans, Venue: v.functions, Declared: v.declared, Output: v.openOutput,
		Now: v.config.HostClock, Logger: v.logger,
	})
	if err != nil {
		return nil, err
	}
	v.work("spill", spilling.Run)
	return v, nil
}

// startPool starts what runs tasks on this host.
func (v *venues) startPool() (err error) {
	config := v.config
	host := hostName()
	driver := device.Open()
	v.onClose("the driver of the GPUs", func(context.Context) error { return driver.Close() })
	v.agent, err = agent.New(agent.Options{
		Host: host, StateDir: config.StateDir, Enforcement: config.Limits,
		Capacity: quantity.Size{Memory: config.PoolMemory}, CPUs: config.PoolCPUs, PricePerHour: config.HostPrice,
		GPUPrice: config.GPUPrice,
		GPUs:     driver, OfferGPUs: gpuFilter().Offer,
		Client: v.temporal, ArtifactsURL: v.store.local, ServerURL: v.store.server,
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

// gpuFilter is which GPUs of this host attempts may have: those that CUDA_VISIBLE_DEVICES leaves to this process.
func gpuFilter() device.Filter {
	visible, set := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	return device.Filter{Visible: visible, Set: set, Order: os.Getenv("CUDA_DEVICE_ORDER")}
}

// hostName is the name of this host.
func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return name
}

// usualHost is what Config.HostPrice is for where this host has no pool: a CPU of the usual host, with its memory.
var usualHost = quantity.Size{CPU: quantity.Core, Memory: 2 * quantity.GiB}

// prices are those in force on this engine. Without a pool they are those of the usual host: what others cost is known
// when they have run something.
func (v *venues) prices() *wire.Prices {
	prices := wire.Prices{HostPerHour: v.config.HostPrice, HostCapacity: usualHost}
	if v.agent != nil {
		host := v.agent.Host()
		prices.HostPerHour, prices.HostCapacity = host.PricePerHour, host.Capacity
	}
	if v.functions.Enabled {
		prices.FunctionPerGiBSecond, prices.FunctionPerRequest = v.functions.PerGiBSecond, v.functions.PerRequest
	}
	return &prices
}
