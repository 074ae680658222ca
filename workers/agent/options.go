package agent

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"go.temporal.io/sdk/client"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/device"
	"github.com/spillway-ml/spillway/workers/enforce"
	"github.com/spillway-ml/spillway/workers/slot"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// Options configures an [Agent]. Host, Client, StateDir, Builds, Recorder, Plans and Inventory are required.
type Options struct {
	// Host is the host's name, unique in the stack.
	Host string
	// Instance names this start of the agent, as no other; empty makes a name up.
	Instance string
	// Client is connected to Temporal.
	Client client.Client
	// StateDir is an existing directory that no other agent uses at the same time.
	StateDir string
	// Enforcement is how sizes are held; empty means the best way that the host offers.
	Enforcement enforce.Mode
	// Processes is how many processes and threads an attempt may have, where the host can hold it to that; 0 means
	// [enforce.DefaultProcesses].
	Processes int
	// Capacity is what the children may hold together. Zero memory means 80% of the memory that is available now, zero CPU
	// one core for each of CPUs.
	Capacity quantity.Size
	// CPUs are the numbers of the CPUs that children are kept on; nil means all that this process may use.
	CPUs []int
	// GPUs tells of the GPUs of the host, which are a part of the capacity as soon as it does: nothing waits for it. Nil
	// where there is nobody to ask; then, and where there is no driver, nothing is said to attempts of GPUs.
	GPUs Driver
	// OfferGPUs says which of them attempts may have, as [device.Filter.Offer] does; nil leaves all of one class.
	OfferGPUs func(devices []device.State, class string) (offered []device.State, kept []device.Kept)
	// PricePerHour is what holding the whole capacity costs, per hour, but for the GPUs; GPUPrice is what one GPU of a
	// class costs, per hour. Nil has them cost nothing besides.
	PricePerHour quantity.Money
	GPUPrice     func(class string) quantity.Money
	// ArtifactsURL is the artifact store that children are told.
	ArtifactsURL string
	// ServerURL is the parameter server that children are told; empty where there is none. It holds a secret.
	ServerURL string
	// Store has the artifacts, for commands; nil refuses them.
	Store activities.Store
	// Declared says whether a host may run a command: nil when its stage was declared as one that runs it. Nil refuses
	// every command.
	Declared slot.Declared
	// Secrets has what stages name as secrets; nil gives them none.
	Secrets slot.Secrets
	// WorkspaceBytes is how much the files of one command may take; 0 means half of the disk that is free now.
	WorkspaceBytes quantity.Bytes
	// Environment is added to the environment of children, which else is PATH, HOME, TMPDIR, LANG and TZ of this process
	// and what the engine says.
	Environment map[string]string
	// User is as whom stages run, children and commands alike; nil means as this process's user. It must be able to reach
	// StateDir, the programs that Builds finds and the store at ArtifactsURL.
	User *spawn.User
	// Builds finds the programs of children.
	Builds activities.Builds
	// Recorder takes Records, starts and samples.
	Recorder activities.Recorder
	// Results keeps results for later runs; nil keeps none.
	Results slot.Keeper
	// Superseded is told of checkpoints that newer ones of an attempt have replaced for good, with what was stored for
	// them alone and when they were made, and of the attempt's proof; nil is not told. It must not block.
	Superseded func(proof string, older []activities.Ref, made time.Time)
	// Proofs is told what the attempts in hand came with to show that they were given to this host; nil is not told.
	Proofs *slot.Proofs
	// Plans hands out the plan.
	Plans activities.Plans
	// Output opens what takes the standard output and error of an attempt; nil discards them, but for the log.
	Output func(wire.LogSource) activities.Output
	// Inventory is told how the host stands every second and soon after each change. Calls do not overlap; an error is
	// logged.
	Inventory func(context.Context, predictor.Host) error
	// Elsewhere says that runs are started on other machines: a command that runs in a directory of one is not for this.
	Elsewhere bool
	// Lease is for how long the engine takes the host to be there after it has taken the Inventory. An agent that could
	// not tell it for four fifths of that kills what it runs, so that nothing goes on here that others are given, and
	// takes tasks as another instance once it is heard again. 0 is for an agent in the process of its engine, which ends
	// with it: it never does.
	Lease time.Duration
	// Fenced is told that the agent has killed what it ran, and with false that it takes tasks again; nil is not told.
	Fenced func(fenced bool)
	// InHand is told which attempts the host has in hand each time that these have changed, so that others can give them
	// back when it is lost; an error is logged, and they are told again. The sequence grows with what is told: one that
	// was on its way for long comes behind a later one. Nil is not told.
	InHand func(ctx context.Context, instance string, sequence int, taken []slot.Taken) error
	// Held is told about once a minute for how long the host was held, whoever used it; nil is not told. Calls do not
	// overlap; an error is logged, and the same is told again before what comes next.
	Held func(context.Context, predictor.HostHeld) error
	// Started makes durable that the agent has started anew, before it takes its first task; it is tried again until it
	// has. Nil tells nobody.
	Started func(context.Context, predictor.HostStarted) error
	// SampleEvery is the time between two looks at a running attempt; 0 means a second.
	SampleEvery time.Duration
	// ReadyTimeout is how long a child may take from its start until it is ready for an attempt, which else fails; 0 means
	// 30 seconds.
	ReadyTimeout time.Duration
	// Drain is how long running attempts may go on when the agent is told to end; 0 means 10 seconds.
	Drain time.Duration
	// Now is the host's clock, by which what happens is told; nil means time.Now.
	Now func() time.Time
	// Logger takes the agent's log, and the stages' output at debug level; nil discards both.
	Logger *slog.Logger
	// Gangs is asked for hosts that run an attempt together, and TrainingAddress is an IP address of this host at which
	// processes of the others reach its own, in the clear; nil or empty leaves the host out of all gangs.
	Gangs           Gangs
	TrainingAddress string

	uptime func() time.Duration // by which a lease lasts; nil is sinceBoot
}

// complete refuses what cannot work and fills in the defaults.
func (o *Options) complete() error {
	if o.Host == "" || o.Client == nil || o.StateDir == "" || o.Builds == nil || o.Recorder == nil || o.Plans == nil ||
		o.Inventory == nil {
		return errors.New("host, client, state directory, builds, recorder, plans and inventory are all required")
	}
	if o.Capacity.CPU < 0 || o.Capacity.Memory < 0 || o.PricePerHour < 0 {
		return fmt.Errorf("capacity %s and price %s per hour must not be negative", o.Capacity, o.PricePerHour)
	}
	allowed, err := spawn.AllowedCPUs()
	if err != nil {
		return err
	}
	if err := checkTrainingAddress(o.TrainingAddress); err != nil {
		return err
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if len(o.CPUs) == 0 {
		o.CPUs = allowed
	}
	for _, cpu := range o.CPUs {
		if !slices.Contains(allowed, cpu) {
			return fmt.Errorf("cpu %d is not available to this process; choose among %v", cpu, allowed)
		}
	}
	if o.Capacity.CPU == 0 {
		o.Capacity.CPU = quantity.Milli(len(o.CPUs)) * quantity.Core
	}
	if o.Capacity.Memory == 0 {
		available, err := availableMemory()
		if err != nil {
			return err
		}
		o.Capacity.Memory = quantity.Bytes(availableShare * float64(available))
	}
	if o.WorkspaceBytes <= 0 {
		found, err := diskAt(o.StateDir)
		if err != nil {
			return err
		}
		o.WorkspaceBytes = quantity.Bytes(workspaceShare * float64(found.free))
	}
	if o.SampleEvery <= 0 {
		o.SampleEvery = defaultSampleEvery
	}
	if o.ReadyTimeout <= 0 {
		o.ReadyTimeout = defaultReady
	}
	if o.Drain <= 0 {
		o.Drain = defaultDrain
	}
	if o.uptime == nil {
		o.uptime = sinceBoot
	}
	o.Instance = cmp.Or(o.Instance, rand.Text())
	if o.Fenced == nil {
		o.Fenced = func(bool) {}
	}
	if o.Output == nil {
		o.Output = func(wire.LogSource) activities.Output { return discarded{} }
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return nil
}

// checkTrainingAddress refuses an address that this host does not have; empty is none.
func checkTrainingAddress(address string) error {
	if address == "" {
		return nil
	}
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.ParseIP(address)})
	if err == nil {
		err = listener.Close()
	}
	if err != nil || net.ParseIP(address) == nil {
		return fmt.Errorf("listen at the training address %s: %w; give an IP address that a network interface of this "+
			"machine has", address, err)
	}
	return nil
}
