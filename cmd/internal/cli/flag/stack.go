package flag

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/activities/alerts"
	"github.com/spillway-ml/spillway/activities/artifact/s3store"
	"github.com/spillway-ml/spillway/activities/awslambda"
	"github.com/spillway-ml/spillway/activities/traces"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/config"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
	"github.com/spillway-ml/spillway/cmd/internal/signin"
	"github.com/spillway-ml/spillway/cmd/internal/teams"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// What the pool and functions cost unless flags say otherwise: a CPU of the pool is a part of this host on demand, and
// functions are those.
const (
	UsualRegion   = "us-east-1"
	UsualHost     = "c7i.xlarge"
	UsualFunction = "lambda-x86"
)

const (
	// UsualConcurrency is AWS's limit of an account.
	UsualConcurrency = 1000
	// UsualColdStart is that of a small Go binary on AWS; a local process takes 5 to 20 ms.
	UsualColdStart = 200 * time.Millisecond
	mostColdStart  = awslambda.MaxTimeout // nothing would be left of an invoke
)

// Stack configure the embedded stack, for `dev` and for a `run` that starts its own.
type Stack struct {
	Pool

	Apps []string
	// AppsAsBefore says that Apps names none: those are served that were before.
	AppsAsBefore bool
	ports        engine.Ports
	noUI         bool
	noMetrics    bool
	predictor    string
	noBurst      bool
	priceFactor  float64
	valueOfTime  quantity.Money
	functionCPUs []int
	concurrency  int
	coldStart    time.Duration
	idleAfter    time.Duration
	artifacts    string
	artifactsMax quantity.Bytes
	keepFor      time.Duration
	keepBytes    quantity.Bytes
	keepHours    time.Duration
	ledger       string
	payloadKeys  string
	secretsDir   string
	webhooks     []string
	teams        string
	temporal     engine.TemporalConfig
	nats         engine.NATSConfig
	listen       engine.ListenConfig
	signIn       signin.Options

	// NoPool leaves the pool of this machine out.
	NoPool bool

	Set *pflag.FlagSet // the flags that configure the stack and nothing else
}

// Add adds the flags to a command that may start a stack, and sets their defaults.
func (f *Stack) Add(flags *pflag.FlagSet) {
	policy := predictor.DefaultPolicy()
	f.predictor, f.priceFactor, f.concurrency, f.coldStart = "on", 1, UsualConcurrency, UsualColdStart
	f.valueOfTime, f.idleAfter = policy.ValueOfTime, policy.IdleAfter

	f.Set = pflag.NewFlagSet("stack", pflag.ContinueOnError)
	f.Set.Var(port{&f.ports.HTTP}, "http-port", fmt.Sprintf("port of the API (default %d, or a free one)",
		engine.UsualHTTP))
	f.Set.Var(port{&f.ports.Temporal}, "temporal-port",
		fmt.Sprintf("port of Temporal's frontend (default %d, or a free one)", engine.UsualTemporal))
	f.Set.Var(port{&f.ports.UI}, "ui-port", fmt.Sprintf("port of Temporal's web UI (default %d, or a free one)",
		engine.UsualUI))
	f.Set.Var(port{&f.ports.NATS}, "nats-port", fmt.Sprintf("port of NATS (default %d, or a free one)", engine.UsualNATS))
	f.addServers()
	f.addSecrets()
	addListen(&f.listen, f.Set)
	addSignIn(&f.signIn, f.Set)
	f.Set.BoolVar(&f.noUI, "no-ui", false, "leave Temporal's web UI out")
	f.Set.BoolVar(&f.noMetrics, "no-metrics", false, "leave the series for Prometheus out")
	f.Set.Var(Choice{Value: &f.predictor, Of: []string{"on", "shadow", "off"}}, "predictor",
		"off keeps every stage at its declared or first size and never spills; shadow does so too, and predicts")
	f.Set.BoolVar(&f.noBurst, "no-burst", false, "never spill to functions")
	f.Set.Var(factor{&f.priceFactor}, "function-price-factor", "multiplies the price of functions")
	f.Set.Var(dollars{value: &f.valueOfTime}, "value-of-time",
		"what an hour of earlier finish is worth to a run that has no goal, in US dollars per hour")
	f.add(f.Set, "(default the lower half; all with --no-burst, and where a command or a chain starts its own stack)")
	f.Set.Var(Store{Value: &f.artifacts}, "artifacts", "where artifacts are kept: files, or "+s3store.Supported+
		" (default where the state directory keeps them, files in a new one)")
	f.Set.Var(Memory{&f.artifactsMax}, "artifacts-max",
		"what artifacts may take together, such as 200GiB: more is refused (default no bound)")
	f.Set.Var(keep{&f.keepFor}, "keep-for", "how long artifacts are kept that only ended runs reach, at most 720h "+
		"(default 720h, 30 days)")
	f.Set.Var(room{&f.keepBytes}, "keep-bytes",
		"what artifacts may take before the runs that ended first give theirs back, such as 200GiB (default 60% of the disk)")
	f.Set.Var(hours{&f.keepHours}, "keep-hours", "how long costs are known by the hour, from 720h to 8760h; older ones "+
		"are known by the day (default 2160h, 90 days)")
	AddLedger(f.Set, &f.ledger)
	f.Set.Var(CPUList{&f.functionCPUs}, "function-cpus",
		"CPU numbers of local functions (default those that are not the pool's)")
	f.Set.Var(Count{&f.concurrency, 1}, "function-concurrency", "the most function environments at a time")
	f.Set.Var(Span{Value: &f.coldStart, orZero: true, most: mostColdStart}, "function-cold-start",
		"time added to the start of a local environment, which starts faster than on AWS")
	f.Set.Var(Span{Value: &f.idleAfter}, "idle-after",
		"how long a stage without work keeps its last slot at most, however dear a start is")
	f.Set.StringArrayVar(&f.webhooks, "alert-webhook", nil,
		"`URL` to which alerts about goals are posted as JSON; may be given several times. Where it is a secret, set "+
			alerts.WebhooksVariable)
	f.Set.StringVar(&f.teams, "teams-file", "",
		"`FILE` that declares teams: whose pipelines are which, and what each may have; it is read again when it changes "+
			"(default one team that has all)")
	config.Mark(f.Set)
	webhooks := f.Set.Lookup("alert-webhook")
	config.MarkSecret(webhooks)
	config.MarkVariable(webhooks, alerts.WebhooksVariable)
	flags.AddFlagSet(f.Set)
}

// Changed returns the flags that were typed and that only a stack being started can obey. What a configuration file or
// the environment says is for whenever one is started.
func (f *Stack) Changed() []string {
	var names []string
	f.Set.VisitAll(func(flag *pflag.Flag) {
		if config.OriginOf(flag).Source == config.CommandLine {
			names = append(names, "--"+flag.Name)
		}
	})
	return names
}

// ServeNoApp says that the stack is for commands alone: it lasts as long as they do, and the pool has all CPUs, of
// which functions of this machine would only take some, unless flags share them out.
func (f *Stack) ServeNoApp() {
	if !f.Set.Changed("pool-cpus") && !f.Set.Changed("function-cpus") {
		f.noBurst = true
	}
}

// AloneBecause says why a stack of these flags can have no other server beside it; empty where it can.
func (f *Stack) AloneBecause() string {
	return engine.AloneBecause(&engine.Config{
		NATS: f.nats, Temporal: f.temporal, Ledger: f.ledger, Artifacts: f.artifacts,
	})
}

// Config returns the configuration without the apps and the logger.
func (f *Stack) Config(stateDir, version string, environment func(string) (string, bool)) (engine.Config, error) {
	made, err := f.config(stateDir, version, environment)
	return made, f.placed(err)
}

func (f *Stack) config(stateDir, version string, environment func(string) (string, bool)) (engine.Config, error) {
	if err := checkWebhooks(f.webhooks); err != nil {
		return engine.Config{}, err
	}
	traced, err := tracesFrom(environment)
	if err != nil {
		return engine.Config{}, err
	}
	allowed, err := spawn.AllowedCPUs()
	if err != nil {
		return engine.Config{}, fmt.Errorf("find the CPUs of this machine: %w", err)
	}
	user, err := f.user(f.Set)
	if err != nil {
		return engine.Config{}, err
	}
	burst := !f.noBurst && f.predictor == "on"
	pool, functions, err := splitCPUs(allowed, f.poolCPUs, f.functionCPUs, burst)
	if err != nil {
		return engine.Config{}, err
	}
	if f.NoPool {
		pool = nil
		if burst && len(f.functionCPUs) == 0 {
			functions = allowed
		}
	}
	policy := predictor.DefaultPolicy()
	policy.Static, policy.Shadow, policy.ValueOfTime, policy.IdleAfter = f.predictor == "off", f.predictor == "shadow",
		f.valueOfTime, f.idleAfter
	prices, function, err := f.charge(f.Set, pool)
	if err != nil {
		return engine.Config{}, err
	}
	ledger, err := LedgerFile(f.ledger)
	if err != nil {
		return engine.Config{}, err
	}
	declared, err := openTeams(f.teams)
	if err != nil {
		return engine.Config{}, err
	}
	signIn, err := f.SignIn()
	if err != nil {
		return engine.Config{}, err
	}
	clocks, _ := environment(clocksEnvironment)
	keys, err := f.payloadKeysFile()
	if err != nil {
		return engine.Config{}, err
	}
	secrets, err := f.secretsDirectory()
	if err != nil {
		return engine.Config{}, err
	}
	runner, _ := environment(engine.RunnerVariable)
	return engine.Config{
		StateDir: stateDir, Version: version, AppsAsBefore: f.AppsAsBefore, Ports: f.ports, Listen: f.listen,
		SignIn: signIn,
		NoPool: f.NoPool, NoUI: f.noUI, Temporal: f.temporal, NATS: f.nats, PayloadKeys: keys, Secrets: secrets,
		NoMetrics: f.noMetrics,
		Clock:     clock(clocks, "engine", true), HostClock: clock(clocks, "host", false),
		Policy: policy, HostPrice: prices.host, GPUPrice: prices.gpu, Prices: prices.catalogue, PoolCPUs: pool,
		PoolMemory: f.poolMemory, Artifacts: f.artifacts, ArtifactsMax: f.artifactsMax, KeepFor: f.keepFor,
		KeepBytes: f.keepBytes, KeepHours: f.keepHours, Ledger: ledger, Teams: declared,
		Limits: limitModes[f.limits], AlertWebhooks: f.webhooks, Traces: traced,
		StageUser: user, TrainingAddress: f.trainingAddress,
		Functions: engine.FunctionConfig{
			Enabled: burst, PerGiBSecond: function.Prices[pricing.PerGiBSecond].Times(f.priceFactor),
			PerRequest:  function.Prices[pricing.PerRequest].Times(f.priceFactor),
			Concurrency: f.concurrency, ColdStart: f.coldStart, CPUs: functions, Runner: runner,
		},
	}, nil
}

// placed has an error about one of the flags, whose message begins with its name, say where its value was said.
func (f *Stack) placed(err error) error {
	wrong, ok := errors.AsType[*fault.UsageError](err)
	if !ok {
		return err
	}
	name, isFlag := strings.CutPrefix(wrong.Problem, "--")
	if end := strings.IndexAny(name, " :"); isFlag && end > 0 {
		if flag := f.Set.Lookup(name[:end]); flag != nil {
			return &fault.UsageError{Problem: config.Told(flag) + name[end:], Hint: wrong.Hint}
		}
	}
	return err
}

// checkWebhooks refuses what alerts cannot be posted to. It never repeats a URL: its path and query may be secrets.
func checkWebhooks(webhooks []string) error {
	for i, webhook := range webhooks {
		if err := alerts.CheckWebhook(webhook); err != nil {
			return &fault.UsageError{
				Problem: fmt.Sprintf("--alert-webhook (the %d. of %d): %v", i+1, len(webhooks), err),
				Hint:    "give a URL such as https://hooks.example.com/alerts",
			}
		}
	}
	return nil
}

// tracesFrom returns where traces go, by the environment variables of OpenTelemetry; the zero value when they say
// nowhere.
func tracesFrom(environment func(string) (string, bool)) (traces.Options, error) {
	options, wanted, err := traces.FromEnvironment(func(name string) string {
		value, _ := environment(name)
		return value
	})
	if err != nil {
		return traces.Options{}, &fault.UsageError{
			Problem: err.Error(),
			Hint:    "correct the variable, or unset it to export no traces",
		}
	}
	if !wanted {
		return traces.Options{}, nil
	}
	return options, nil
}

// Catalogue reads the file that --prices names, or the embedded prices where it names none, and says where they are
// from.
func Catalogue(name string) (prices pricing.Catalogue, source string, err error) {
	if name == "" {
		return pricing.Default(), "the embedded catalogue", nil
	}
	file, err := OpenFile(name)
	if err != nil {
		return prices, "", &fault.UsageError{
			Problem: "--prices: " + err.Error(),
			Hint:    "give a file as predictor/pricing/prices.csv is",
		}
	}
	prices, err = pricing.Parse(file, time.Now())
	if err := errors.Join(err, file.Close()); err != nil {
		return prices, "", &fault.UsageError{
			Problem: fmt.Sprintf("--prices %s: %v", name, err),
			Hint:    "correct the file, or leave the flag out for the embedded catalogue",
		}
	}
	return prices, name, nil
}

// usualPrices returns what a CPU of the pool costs in an hour, and what functions cost.
func usualPrices(catalogue pricing.Catalogue, source string) (cpu quantity.Money, function pricing.Offer, err error) {
	host, known := catalogue.Lookup(pricing.OnDemandHost, UsualRegion, UsualHost)
	functions, offered := catalogue.Lookup(pricing.Function, UsualRegion, UsualFunction)
	if !known || !offered || host.Capacity.CPU <= 0 {
		return 0, function, &fault.UsageError{Problem: fmt.Sprintf("%s has no %s or no %s in %s", source, UsualHost,
			UsualFunction, UsualRegion), Hint: "add both rows: they are the defaults of --host-price and of functions"}
	}
	whole := pricing.Host{PerHour: host.Prices[pricing.PerHour], Capacity: host.Capacity}
	return whole.For(quantity.Size{CPU: quantity.Core}, time.Hour), functions, nil
}

// splitCPUs shares the CPUs that this process may use between the pool and local functions. What is given is kept;
// otherwise the pool has the lower half, rounded up, and functions the rest. A single CPU is shared by both. Without
// burst the pool has all.
func splitCPUs(allowed, pool, functions []int, burst bool) (poolCPUs, functionCPUs []int, err error) {
	if err := errors.Join(checkCPUs("--pool-cpus", pool, allowed),
		checkCPUs("--function-cpus", functions, allowed)); err != nil {
		return nil, nil, err
	}
	without := func(taken []int) []int {
		return slices.DeleteFunc(slices.Clone(allowed), func(cpu int) bool { return slices.Contains(taken, cpu) })
	}
	switch {
	case len(pool) == 0 && !burst:
		pool = allowed
	case len(pool) == 0 && len(functions) > 0:
		pool = without(functions)
	case len(pool) == 0:
		pool = allowed[:(len(allowed)+1)/2]
	}
	if !burst {
		functions = nil
	} else if len(functions) == 0 {
		functions = without(pool)
	}
	if len(pool) == 0 {
		pool = allowed
	}
	if burst && len(functions) == 0 {
		functions = allowed
	}
	return slices.Clone(pool), slices.Clone(functions), nil
}

// checkCPUs refuses CPUs that this process may not use.
func checkCPUs(flag string, cpus, allowed []int) error {
	for _, cpu := range cpus {
		if !slices.Contains(allowed, cpu) {
			return &fault.UsageError{
				Problem: fmt.Sprintf("%s %s: this process may not use CPU %d", flag, FormatCPUs(cpus), cpu),
				Hint:    "choose among " + FormatCPUs(allowed),
			}
		}
	}
	return nil
}

// openTeams reads the file of teams; nil where none is named.
func openTeams(path string) (*teams.File, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // a file that is not named declares none
	}
	file, err := teams.Open(path)
	if err != nil {
		return nil, &fault.UsageError{
			Problem: err.Error(),
			Hint:    "`SPILLWAY_TEAMS_FILE=FILE spillway config check` lists all that is wrong with it",
		}
	}
	return file, nil
}
