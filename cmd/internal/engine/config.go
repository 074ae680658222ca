package engine

import (
	"log/slog"
	"path/filepath"
	"time"

	"github.com/spillway-ml/spillway/activities/traces"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/external"
	"github.com/spillway-ml/spillway/cmd/internal/secrets"
	"github.com/spillway-ml/spillway/cmd/internal/signin"
	"github.com/spillway-ml/spillway/cmd/internal/teams"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// Config is what the flags of `spillway dev` say, as plain values. Every field is set by the commands; no zero value
// stands for another default unless the field says so.
type Config struct {
	// StateDir is the absolute path of the state directory; it exists.
	StateDir string
	// Version is that of this binary.
	Version string
	// Apps are served from the start.
	Apps []build.App
	// AppsAsBefore says that nobody has named them: they are those that the state directory has, and what other servers of
	// the stack serve counts more.
	AppsAsBefore bool
	// Ports are those to listen on.
	Ports Ports
	// Listen is the port for other machines.
	Listen ListenConfig
	// SignIn says with which identity provider people sign in; nil for none.
	SignIn *signin.Options
	// NoPool leaves the pool of this host out: only other hosts run stages.
	NoPool bool
	// Temporal and NATS are those to run on; the zero value of each starts one in this process.
	Temporal TemporalConfig
	NATS     NATSConfig
	// PayloadKeys is the file of the keys with which what Temporal is given is encrypted (see payloads.ReadKeys); empty
	// encrypts nothing.
	PayloadKeys string
	// Secrets has what stages name as secrets; empty has none.
	Secrets secrets.Directory
	// NoUI leaves Temporal's web UI out.
	NoUI bool
	// NoMetrics leaves the series for Prometheus out: nothing is counted, and /metrics is not there.
	NoMetrics bool
	// Policy is the configuration of the autoscaler; Policy.Static is --predictor=off.
	Policy predictor.Policy
	// Teams are those that an operator has declared; nil for none.
	Teams *teams.File
	// HostPrice is what holding the whole pool of this host costs, per hour; with NoPool what a CPU of any host does.
	HostPrice quantity.Money
	// GPUPrice is what a GPU of a class costs besides, per hour; nil has GPUs cost nothing.
	GPUPrice func(class string) quantity.Money
	// Prices is the catalogue that --prices names.
	Prices pricing.Catalogue
	// PoolCPUs are the CPU numbers of the pool; never empty but with NoPool.
	PoolCPUs []int
	// TrainingAddress is an IP address of this host at which processes of other hosts reach its own in a gang, in the
	// clear; empty leaves it out of all gangs.
	TrainingAddress string
	// PoolMemory is the memory of the pool; 0 means 80% of what is available when the engine starts.
	PoolMemory quantity.Bytes
	// Artifacts is where artifacts are kept: InFiles, or a location as s3store.Parse reads it. Empty is where the state
	// directory keeps them already, and files in a new one.
	Artifacts string
	// ArtifactsMax is what artifacts that are sent to the engine may take together with all others; 0 is no bound.
	ArtifactsMax quantity.Bytes
	// KeepFor and KeepBytes say how long, and within how many bytes, what ended runs reach is kept (see retention.Policy);
	// 0 is the usual.
	KeepFor   time.Duration
	KeepBytes quantity.Bytes
	// KeepHours is for how long costs are known by the hour (see ledgerstore.Store.Forget); 0 is the usual.
	KeepHours time.Duration
	// Ledger is the file with the URL of the PostgreSQL database in which the ledger is kept (see LedgerURL); empty keeps
	// it in a file of the state directory.
	Ledger string
	// Limits is what holds attempts to their sizes; empty means the best that the host offers.
	Limits enforce.Mode
	// StageUser is as whom stages run, functions among them; nil means as the user of this process.
	StageUser *spawn.User
	// Functions configures the function venue.
	Functions FunctionConfig
	// AlertWebhooks are the URLs to which alerts are posted, each checked by alerts.CheckWebhook; they may hold secrets.
	// Empty for none.
	AlertWebhooks []string
	// Traces says where traces go; an empty Endpoint exports none. The engine sets Instance, Since and Logger.
	Traces traces.Options
	// Starting is told, about once a second, what the start still waits for; nil tells nobody.
	Starting func(progress string)
	// Clock is what decisions and accounts go by, HostClock what the host and functions tell of themselves; never nil.
	Clock, HostClock func() time.Time
	// Logger takes the engine's log; never nil.
	Logger *slog.Logger
}

type (
	// TemporalConfig says which Temporal an engine runs on.
	TemporalConfig = external.TemporalConfig
	// NATSConfig says which NATS an engine runs on.
	NATSConfig = external.NATSConfig
	// TLSConfig says how a server of somebody else and an engine know each other.
	TLSConfig = external.TLSConfig
)

// Ports are TCP ports on the loopback interface. 0 means a free one.
type Ports struct {
	HTTP, Temporal, UI, NATS int
	// Usual makes a port that is 0 the usual one (see the Usual constants) as long as that is free, else any free one.
	// It is set by `dev`, so that a newcomer finds the addresses that documentation names.
	Usual bool
}

// The usual ports: those that Temporal's and NATS's own tools expect, and the page's.
const (
	UsualHTTP     = 7474
	UsualTemporal = 7233
	UsualUI       = 8233
	UsualNATS     = 4222
)

// FunctionConfig configures the function venue.
type FunctionConfig struct {
	// Enabled is false with --no-burst: nothing spills and no host of functions is started.
	Enabled bool
	// PerGiBSecond and PerRequest are what functions cost.
	PerGiBSecond, PerRequest quantity.Money
	// Concurrency is the most environments at a time; at least 1.
	Concurrency int
	// ColdStart is added to the start of every local environment; 0 or more.
	ColdStart time.Duration
	// CPUs are the CPU numbers of the local function host; never empty while Enabled.
	CPUs []int
	// Runner is the program that runs commands as functions; empty means spillway-runner beside this program.
	Runner string
}

func (c *Config) artifactDir() string { return filepath.Join(c.StateDir, "artifacts") }
