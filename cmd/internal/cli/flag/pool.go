package flag

import (
	"fmt"
	"net"

	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/host"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// Pool is what this machine gives to the pool, for the stack and for a host that joins one.
type Pool struct {
	hostPrice  quantity.Money
	poolCPUs   []int
	poolMemory quantity.Bytes
	limits     string
	prices     string
	stageUser  string
	LogLevel   string

	trainingAddress string
}

// add adds the flags to a set, and sets their defaults; usualCPUs says which CPUs the pool has where none are named.
func (p *Pool) add(set *pflag.FlagSet, usualCPUs string) {
	p.limits, p.LogLevel = "best", "info"
	set.Var(dollars{value: &p.hostPrice}, "host-price",
		"what the whole pool costs, in US dollars per hour (default for each of its CPUs: a CPU of a "+UsualHost+
			" in the catalogue of prices, and for each GPU what one of its model costs there)")
	set.StringVar(&p.prices, "prices", "", "`FILE` of a catalogue of prices instead of the embedded one (see "+
		"predictor/pricing)")
	set.Var(CPUList{&p.poolCPUs}, "pool-cpus", "CPU numbers of the pool, such as 0-3,8 "+usualCPUs)
	set.Var(hostMemory{Memory{&p.poolMemory}}, "pool-memory",
		"memory of the pool, such as 8GiB (default 80% of what is available when it starts)")
	set.Var(address{&p.trainingAddress}, "training-address",
		"`IP` address of this machine at which ranks on other hosts reach those here: it takes part in trainings across "+
			"hosts (train --hosts), whose ranks exchange tensors there without encryption (default it takes no part)")
	set.Var(Choice{Value: &p.limits, Of: []string{"best", "cgroup-v2", "cgroup-v1", "none"}}, "limits",
		"what holds attempts to their sizes (see spillway doctor for what this machine offers)")
	set.StringVar(&p.stageUser, "stage-user", "",
		"`USER` as whom stages run, where root starts spillway: they can do no more than that user can")
	set.Var(Choice{Value: &p.LogLevel, Of: []string{"debug", "info", "warn", "error"}}, "log-level",
		"least level of the engine's log, <state>/spillway.log")
}

// limitModes are the values of --limits.
var limitModes = map[string]enforce.Mode{
	"best": "", "cgroup-v2": enforce.Unified, "cgroup-v1": enforce.Legacy,
	"none": enforce.None,
}

// address is a flag that takes an IP address.
type address struct{ value *string }

// String returns the address; empty for none.
func (a address) String() string {
	if a.value == nil {
		return ""
	}
	return *a.value
}

// Type is the placeholder in the usage.
func (address) Type() string { return "IP" }

// Set reads an address that others can connect to.
func (a address) Set(text string) error {
	found := net.ParseIP(text)
	if found == nil || found.IsUnspecified() || found.IsMulticast() {
		return &fault.UsageError{
			Problem: "it is no IP address of a machine",
			Hint:    "write one that an interface of this machine has and the other hosts reach, such as 10.0.0.7",
		}
	}
	*a.value = found.String()
	return nil
}

// checkTraining refuses an address that this machine does not have, before anybody is told of it.
func (p *Pool) checkTraining() error {
	if p.trainingAddress == "" {
		return nil
	}
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.ParseIP(p.trainingAddress)})
	if err == nil {
		err = listener.Close()
	}
	if err != nil {
		return &fault.UsageError{
			Problem: "--training-address: " + err.Error(),
			Hint:    "give an IP address that a network interface of this machine has",
		}
	}
	return nil
}

// user finds as whom stages run; nil is the user of this process.
func (p *Pool) user(set *pflag.FlagSet) (*spawn.User, error) {
	if !set.Changed("stage-user") {
		return nil, nil //nolint:nilnil // a user that nobody named is no mistake
	}
	found, err := spawn.LookupUser(p.stageUser)
	if err != nil {
		return nil, &fault.UsageError{
			Problem: "--stage-user: " + err.Error(),
			Hint:    "start spillway as root and name a user of this machine that is not, or leave the flag out",
		}
	}
	return found, nil
}

// charges are what the pool costs, and the catalogue that says so.
type charges struct {
	catalogue pricing.Catalogue
	host      quantity.Money                    // the whole pool, but for GPUs, per hour
	gpu       func(class string) quantity.Money // one of a class, per hour
}

// charge finds what a pool of so many CPUs costs, and functions beside it.
func (p *Pool) charge(set *pflag.FlagSet, cpus []int) (found charges, function pricing.Offer, err error) {
	catalogue, source, err := Catalogue(p.prices)
	if err != nil {
		return found, function, err
	}
	cpu, function, err := usualPrices(catalogue, source)
	if err != nil {
		return found, function, err
	}
	found = charges{catalogue, p.hostPrice, func(string) quantity.Money { return 0 }}
	if p.hostPrice == 0 && !set.Changed("host-price") {
		found.host = cpu * quantity.Money(max(len(cpus), 1))
		found.gpu = func(class string) quantity.Money {
			price, _ := catalogue.GPU(UsualRegion, class, cpu)
			return price
		}
	}
	return found, function, nil
}

// Host are the flags of a machine that joins a stack as a host of its pool.
type Host struct {
	Pool

	// Set has the flags.
	Set *pflag.FlagSet
}

// Add adds the flags to a command, and sets their defaults.
func (h *Host) Add(flags *pflag.FlagSet) {
	h.Set = pflag.NewFlagSet("host", pflag.ContinueOnError)
	h.add(h.Set, "(default all that this process may use)")
	flags.AddFlagSet(h.Set)
}

// Offer returns what the machine gives to the pool; name and state directory are the caller's to add.
func (h *Host) Offer(environment func(string) (string, bool)) (host.Offer, error) {
	allowed, err := spawn.AllowedCPUs()
	if err != nil {
		return host.Offer{}, fmt.Errorf("find the CPUs of this machine: %w", err)
	}
	user, err := h.user(h.Set)
	if err != nil {
		return host.Offer{}, err
	}
	if err := checkCPUs("--pool-cpus", h.poolCPUs, allowed); err != nil {
		return host.Offer{}, err
	}
	if err := h.checkTraining(); err != nil {
		return host.Offer{}, err
	}
	cpus := h.poolCPUs
	if len(cpus) == 0 {
		cpus = allowed
	}
	prices, _, err := h.charge(h.Set, cpus)
	if err != nil {
		return host.Offer{}, err
	}
	clocks, _ := environment(clocksEnvironment)
	return host.Offer{
		Limits: limitModes[h.limits], CPUs: cpus, Memory: h.poolMemory, PricePerHour: prices.host, GPUPrice: prices.gpu,
		StageUser: user, TrainingAddress: h.trainingAddress, Now: clock(clocks, "host", false),
	}, nil
}
