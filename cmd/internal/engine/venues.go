package engine

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/spillway-ml/spillway/activities/documents"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/gangs"
	"github.com/spillway-ml/spillway/cmd/internal/host"
	"github.com/spillway-ml/spillway/cmd/internal/hosts"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/gang"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/function"
	"github.com/spillway-ml/spillway/workers/spill"
)

// venues is where tasks run: the pool of this host, and functions.
type venues struct {
	*reports

	pool      *host.Host // nil without a pool
	gangs     *gangs.Gangs
	joined    atomic.Pointer[hosts.Registry] // who has joined, once that is open
	functions predictor.FunctionVenue
	place     string         // of artifacts, by which functions are told from those of other engines
	runner    runner         // what runs commands as functions; zero where none do
	local     *function.Host // nil when functions are off, or run elsewhere
}

// openVenues starts the pool and what spills to functions.
func openVenues(ctx context.Context, r *reports) (*venues, error) {
	v := &venues{reports: r}
	v.gangs = gangs.New(gangs.Options{
		Documents: documents.Of[gang.State](v.shared, "gangs", nil), Hosts: v.takingHosts,
		Secret: v.servers.own.Keys().GangSecret, Prove: proveGang(v.servers.own.Keys()), Now: time.Now,
	})
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
		Host: host.Name(), StateDir: v.config.StateDir, Client: v.temporal, Functions: functions,
		Recorder: v.recorder, Started: v.recorder.Started,
		// Elsewhere a process outlives its parent: see package spawn.
		Local:   v.local != nil && runtime.GOOS == "linux",
		Results: v.results, Plans: ownPlans{v.plans, &v.lead}, Venue: v.functions, Declared: v.declared,
		Secrets: v.taskSecrets, Output: v.openOutput, Now: v.config.HostClock, Logger: v.logger,
	})
	if err != nil {
		return nil, err
	}
	v.work("spill", spilling.Run)
	return v, nil
}

// takingHosts are the hosts that have a lease, with which of them are drained.
func (v *venues) takingHosts(ctx context.Context) ([]predictor.Host, error) {
	living, err := v.leases.Hosts(ctx)
	if registry := v.joined.Load(); err == nil && registry != nil {
		living = registry.Mark(living)
	}
	return living, err
}

// startPool starts what runs tasks on this host.
func (v *venues) startPool() error {
	config := v.config
	pool, err := host.New(host.Offer{
		Name: host.Name(), StateDir: config.StateDir, Limits: config.Limits, CPUs: config.PoolCPUs,
		Memory: config.PoolMemory, PricePerHour: config.HostPrice, GPUPrice: config.GPUPrice, StageUser: config.StageUser,
		TrainingAddress: config.TrainingAddress, Now: config.HostClock,
	}, host.Ports{
		Gangs:    v.gangs,
		Temporal: v.temporal, Store: v.store, ArtifactsURL: v.store.local, ServerURL: v.store.server, Builds: v.builds,
		Declared: v.declared, Secrets: v.taskSecrets, Results: v.results, Superseded: v.supersededHere, Plans: v.plans,
		Leases:   v.leases,
		Recorder: v.recorder, Output: v.openOutput, Told: v.observer.metrics.SetGPUs,
	}, v.logger)
	if err != nil {
		return err
	}
	v.pool = pool
	v.onClose("this host", pool.Close)
	v.work("pool", pool.Run)
	return nil
}

// usualHost is what Config.HostPrice is for where this host has no pool: a CPU of the usual host, with its memory.
var usualHost = quantity.Size{CPU: quantity.Core, Memory: 2 * quantity.GiB}

// prices are those in force on this engine. Without a pool they are those of the usual host: what others cost is known
// when they have run something.
func (v *venues) prices() *wire.Prices {
	prices := wire.Prices{HostPerHour: v.config.HostPrice, HostCapacity: usualHost}
	if v.pool != nil {
		own := v.pool.Describe()
		prices.HostPerHour, prices.HostCapacity = own.PricePerHour, own.Capacity
	}
	if v.functions.Enabled {
		prices.FunctionPerGiBSecond, prices.FunctionPerRequest = v.functions.PerGiBSecond, v.functions.PerRequest
	}
	return &prices
}
