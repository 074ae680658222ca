package simulate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/activities/awslambda"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/sim/policy"
	"github.com/spillway-ml/spillway/predictor/size"
)

// simulateFlags are the flags of `simulate`.
type simulateFlags struct {
	trace, host, prices, svg string
	policies                 []string
	work, priceFactor        float64
	limit                    time.Duration
	hosts, concurrency       int
	hostPrice                quantity.Money
	hostStart, coldStart     time.Duration
	seed                     uint64
	json, sharedOut          bool
	set                      *pflag.FlagSet
}

// keepWarm is for how long an environment that has nothing to do is kept, as by the function host of this machine; AWS
// does not say how long it keeps one.
const keepWarm = 5 * time.Minute

func (f *simulateFlags) add(set *pflag.FlagSet) {
	f.set = set
	f.policies, f.limit, f.host, f.priceFactor = policies(), time.Second, flag.UsualHost, 1
	f.hostStart, f.coldStart, f.concurrency, f.seed = time.Minute, flag.UsualColdStart, flag.UsualConcurrency, 1
	set.StringVar(&f.trace, "trace", "", "`FILE` of arrivals, in CSV; .gz is decompressed")
	set.Var(flag.Weight{Value: &f.work}, "work",
		"core-seconds that each task takes, `SECONDS` such as 0.25, where the trace counts tasks by the minute")
	set.StringSliceVar(&f.policies, "policy", f.policies, "the `POLICIES` to replay, separated by commas")
	set.Var(flag.Span{Value: &f.limit}, "slo", "how long after its arrival a task shall end; later is late")
	set.Var(flag.Count{Value: &f.hosts, Least: 1}, "hosts",
		"the hosts of ours, which it holds all the time (default as many as the mean load keeps busy)")
	set.StringVar(&f.host, "host", f.host, "the `TYPE` of all hosts, one on demand of the catalogue of prices")
	set.Var(flag.Price(&f.hostPrice), "host-price", "what a host costs, in US dollars per hour (default as the catalogue)")
	set.Var(flag.SpanOrNone(&f.hostStart, time.Hour), "host-start", "how long a host that is launched serves nothing")
	set.Var(flag.Ratio(&f.priceFactor), "function-price-factor", "multiplies the price of functions")
	set.Var(flag.SpanOrNone(&f.coldStart, awslambda.MaxTimeout), "function-cold-start",
		"how long an environment takes to start")
	set.Var(flag.Count{Value: &f.concurrency, Least: 1}, "function-concurrency",
		"the most function environments at a time")
	set.StringVar(&f.prices, "prices", "",
		"`FILE` of a catalogue of prices instead of the embedded one (see predictor/pricing)")
	set.Var(flag.Seed{Value: &f.seed}, "seed", "from which it is drawn when in its minute a task comes that is counted")
	set.BoolVar(&f.json, "json", false, "print everything as JSON; the units are in the names")
	set.Var(flag.Destination{Value: &f.svg}, "svg", "write a picture of costs and latencies to this `FILE`")
	flag.AddSharedOut(set, &f.sharedOut, "--svg")
}

// check refuses what is missing and policies that there are not.
func (f *simulateFlags) check() error {
	if f.trace == "" {
		return &fault.UsageError{
			Problem: "it needs --trace",
			Hint:    "give the file of arrivals; `spillway simulate --help` shows one",
		}
	}
	if f.set.Changed("work") && f.work < 1e-6 {
		return &fault.UsageError{
			Problem: fmt.Sprintf("--work %g: a task takes more than a microsecond", f.work),
			Hint:    "write the core-seconds of one task, such as 0.25",
		}
	}
	if len(f.policies) == 0 {
		return &fault.UsageError{Problem: "--policy names none", Hint: "write " + strings.Join(policies(), ",")}
	}
	for i, name := range f.policies {
		if !slices.Contains(policies(), name) {
			return &fault.UsageError{
				Problem: fmt.Sprintf("--policy %s: it is none of %s", flag.Shown(name), strings.Join(policies(), ", ")),
				Hint:    "write one or more of them, separated by commas",
			}
		}
		if slices.Contains(f.policies[:i], name) {
			return &fault.UsageError{Problem: "--policy names " + name + " twice", Hint: "write it once"}
		}
	}
	return nil
}

// setting is what all policies have in common, by the catalogue and the flags.
func (f *simulateFlags) setting() (policy.Setting, error) {
	catalogue, source, err := flag.Catalogue(f.prices)
	if err != nil {
		return policy.Setting{}, err
	}
	function, known := catalogue.Lookup(pricing.Function, flag.UsualRegion, flag.UsualFunction)
	if !known {
		return policy.Setting{}, &fault.UsageError{
			Problem: fmt.Sprintf("%s has no %s in %s", source, flag.UsualFunction, flag.UsualRegion),
			Hint:    "add its rows: they are the prices of functions",
		}
	}
	host, known := catalogue.Lookup(pricing.OnDemandHost, flag.UsualRegion, f.host)
	if cores := int(host.Capacity.CPU / quantity.Core); !known || cores < 1 ||
		host.Capacity.Memory < quantity.Bytes(cores)*policy.TaskMemory {
		return policy.Setting{}, &fault.UsageError{
			Problem: fmt.Sprintf("--host %s: %s has no such host on demand in %s with %s for each core", flag.Shown(f.host),
				source, flag.UsualRegion, policy.TaskMemory),
			Hint: "write one of " + strings.Join(hostTypes(catalogue), ", "),
		}
	}
	price := host.Prices[pricing.PerHour]
	if f.set.Changed("host-price") {
		price = f.hostPrice
	}
	return policy.Setting{
		Cores: int(host.Capacity.CPU / quantity.Core), Memory: host.Capacity.Memory, HostPrice: price,
		HostStart: f.hostStart, KeepWarm: keepWarm,
		Functions: predictor.FunctionVenue{
			Enabled: true, Concurrency: f.concurrency, MaxMemory: size.CoreMemory, MaxDuration: awslambda.MaxTimeout,
			Classes:      []quantity.Bytes{size.CoreMemory},
			PerGiBSecond: function.Prices[pricing.PerGiBSecond].Times(f.priceFactor),
			PerRequest:   function.Prices[pricing.PerRequest].Times(f.priceFactor), ColdStart: f.coldStart,
		},
	}, nil
}

// hostTypes are those without GPUs, for which nothing that is simulated asks.
func hostTypes(catalogue pricing.Catalogue) []string {
	var names []string
	for _, row := range catalogue.Rows() {
		if row.Kind == pricing.OnDemandHost && row.Region == flag.UsualRegion && row.Capacity.GPU == 0 {
			names = append(names, row.Name)
		}
	}
	return names
}
