// Package host has a machine of the pool: its agent, and what that needs of the engine, in the engine's own process or
// on a machine elsewhere that has joined it.
package host

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"go.temporal.io/sdk/client"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/agent"
	"github.com/spillway-ml/spillway/workers/device"
	"github.com/spillway-ml/spillway/workers/enforce"
	"github.com/spillway-ml/spillway/workers/slot"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// Offer is what a machine gives to the pool, as the flags of a command say. Name, StateDir and Now are required.
type Offer struct {
	// Name is the host's, unique in the stack.
	Name string
	// Instance names this start of it, as no other; empty makes a name up.
	Instance string
	// StateDir is the absolute path of a directory that no other agent uses; it exists.
	StateDir string
	// Limits is what holds attempts to their sizes; empty means the best that the machine offers.
	Limits enforce.Mode
	// CPUs are the numbers of the CPUs of the pool; nil means all that this process may use.
	CPUs []int
	// Memory is what attempts may hold together; 0 means 80% of what is available now.
	Memory quantity.Bytes
	// PricePerHour is what holding all of it costs, but for the GPUs; GPUPrice is what one GPU of a class costs per hour.
	// Nil has them cost nothing.
	PricePerHour quantity.Money
	GPUPrice     func(class string) quantity.Money
	// StageUser is as whom stages run; nil means as the user of this process.
	StageUser *spawn.User
	// Drain is how long running attempts may go on when the agent is told to end; 0 means 10 seconds.
	Drain time.Duration
	// Now is the machine's clock.
	Now func() time.Time
}

// Ports is what an agent needs of the engine, wherever that is. Those are required of which nothing else is said.
type Ports struct {
	// Temporal is a client with the rights of a host.
	Temporal client.Client
	// Store has the artifacts. ArtifactsURL and ServerURL are where processes of this machine find them and a parameter
	// server; they may hold secrets.
	Store                   activities.Store
	ArtifactsURL, ServerURL string
	// Builds finds the programs of stages.
	Builds activities.Builds
	// Declared says whether a host may run a command.
	Declared slot.Declared
	// Secrets has what stages name as secrets; nil gives them none.
	Secrets slot.Secrets
	// Results keeps results for later runs.
	Results slot.Keeper
	// Superseded is told of checkpoints that newer ones of an attempt have replaced for good, with the attempt's proof; it
	// does not block.
	Superseded func(proof string, older []activities.Ref, made time.Time)
	// Proofs is told what the attempts in hand came with to show that they were given to this host; nil in the process of
	// the engine itself, which takes its word.
	Proofs *slot.Proofs
	// Plans hands out the plan, Leases takes how the host stands, and Recorder what attempts came to.
	Plans    activities.Plans
	Leases   *loop.Leases
	Recorder Recorder
	// Output takes what attempts print.
	Output func(wire.LogSource) activities.Output
	// Elsewhere says that the engine is on another machine. Lease is for how long it takes the host to be there, and
	// InHand is told what it has in hand; 0 and nil in the process of the engine itself.
	Elsewhere bool
	Lease     time.Duration
	InHand    func(ctx context.Context, instance string, sequence int, taken []slot.Taken) error
	// Fenced is told that what ran was stopped since the lease could not be renewed, and with false that tasks are taken
	// again; nil is not told.
	Fenced func(fenced bool)
	// Told is shown how the host stands before its lease is renewed; nil shows nobody.
	Told func(predictor.Host)
}

// Recorder takes what a host has to tell the loop: see loop.Recorder.
type Recorder interface {
	activities.Recorder
	Held(ctx context.Context, held predictor.HostHeld) error
	Started(ctx context.Context, started predictor.HostStarted) error
}

// Host is a machine of the pool. Its methods may be called concurrently.
type Host struct {
	agent  *agent.Agent
	name   string
	leases *loop.Leases
	close  func() error // of the driver of the GPUs
}

// New returns a host that does nothing until Run, which must be called; Close comes after it.
func New(offer Offer, ports Ports, logger *slog.Logger) (*Host, error) {
	driver := device.Open()
	h := &Host{name: offer.Name, leases: ports.Leases, close: driver.Close}
	var err error
	h.agent, err = agent.New(agent.Options{
		Host: offer.Name, Instance: offer.Instance, StateDir: offer.StateDir, Enforcement: offer.Limits,
		Capacity: quantity.Size{Memory: offer.Memory}, CPUs: offer.CPUs, PricePerHour: offer.PricePerHour,
		GPUPrice: offer.GPUPrice,
		GPUs:     driver, OfferGPUs: gpuFilter().Offer,
		Client: ports.Temporal, ArtifactsURL: ports.ArtifactsURL, ServerURL: ports.ServerURL,
		User: offer.StageUser, Builds: executable{ports.Builds, offer.StageUser},
		Store: ports.Store, Superseded: ports.Superseded, Proofs: ports.Proofs, Declared: ports.Declared,
		Secrets: ports.Secrets,
		Results: ports.Results,
		Plans:   ports.Plans,
		Output:  ports.Output,
		Inventory: func(ctx context.Context, host predictor.Host) error {
			if ports.Told != nil {
				ports.Told(host)
			}
			return ports.Leases.PutHost(ctx, host)
		},
		Recorder: ports.Recorder, Held: ports.Recorder.Held, Started: ports.Recorder.Started,
		Elsewhere: ports.Elsewhere, Lease: ports.Lease, InHand: ports.InHand, Fenced: ports.Fenced,
		Drain: offer.Drain, Now: offer.Now, Logger: logger,
	})
	if err != nil {
		return nil, errors.Join(err, driver.Close())
	}
	return h, nil
}

// Run obeys the plan until ctx ends, and drains then: see agent.Agent.
func (h *Host) Run(ctx context.Context) error { return h.agent.Run(ctx) }

// Describe describes the host as it stands now.
func (h *Host) Describe() predictor.Host { return h.agent.Host() }

// Running tells how many attempts the host has taken and not ended.
func (h *Host) Running() int { return h.agent.Running() }

// Close gives the lease back, so that nothing is placed here from now on, and lets the driver of the GPUs go.
func (h *Host) Close(ctx context.Context) error {
	return errors.Join(h.leases.DropHost(ctx, h.name), h.close())
}

// gpuFilter is which GPUs of this machine attempts may have: those that CUDA_VISIBLE_DEVICES leaves to this process.
func gpuFilter() device.Filter {
	visible, set := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	return device.Filter{Visible: visible, Set: set, Order: os.Getenv("CUDA_DEVICE_ORDER")}
}

// Name is what this machine is called where nobody says otherwise: its own name.
func Name() string {
	name, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return name
}
