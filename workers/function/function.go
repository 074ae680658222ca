// Package function runs AWS Lambda functions on this machine behind the Lambda Invoke API.
//
// A [Host] is an http.Handler that an unmodified AWS SDK reaches through its endpoint URL alone. Each execution
// environment is one process: the function's unmodified bootstrap (runtime provided.al2023) or, of the one managed
// runtime that this machine has ([Python]), its wrapper, which is given what AWS would start. It asks for its
// invocations through the official Runtime API on a loopback port of its own. As on AWS, an invocation is complete
// only when the runtime asks for the next one, an environment serves one invocation at a time, idle environments
// are reused last in, first out, and an environment that fails, exits or runs too long is not used again.
//
// # What is enforced and what is not
//
//   - Time: a function's timeout and the limit on its init kill the environment.
//   - Concurrency: the account's limit refuses with 429, of which functions may have a part reserved, and so does the
//     rate at which a function may gain environments (1,000 each 10 s). That on requests (10 a second for each of those)
//     is not modelled.
//   - Payloads: 6 MB, and 6 MB answers; 50 MB of zip, 250 MB unzipped, 10,000 files and
//     directories.
//   - Memory: where this process can make cgroups (package workers/enforce), the kernel kills an environment that
//     exceeds its memory size, with all that it started. Elsewhere on Linux the resident memory of the environment's
//     process group is sampled each 50 ms, and an environment found above its memory size is killed: what a process
//     takes and gives back between two samples is reported but not punished, pages shared between processes count once
//     for each, and processes that leave the group are not seen. Go programs also get GOMEMLIMIT at 90% of the memory
//     size, so that they collect garbage before they are killed.
//   - CPU: environments share [Options.CPUs]; where there are cgroups, each has at most its share in proportion to
//     memory, one vCPU for each 1,769 MB, from its start on, and never more than this machine has.
//   - Files: each environment has a temporary directory of its own (TMPDIR), not a file system of its own.
//
// There are no asynchronous invocations: nobody here calls for them.
//
// # Who may call
//
// A Host acts only on requests whose AWS signature (Signature Version 4, the whole body included) was made with its own
// key:
// [AccessKeyID] and [Options.Secret]. It refuses those of web pages and those to another host's name. Listen on
// loopback only: nothing is encrypted. The Runtime API of an environment lies below a path that nobody can guess and
// that only its process is told, as part of AWS_LAMBDA_RUNTIME_API (host:port/path): runtimes that put the value into a
// URL, such as that of Go, take it as it is, but those that take it apart into a host and a port do not run here.
package function

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/workers/enforce"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// Options configures a [Host]. Only Dir and Secret are required.
type Options struct {
	// Dir keeps the functions: code in Dir/<name>/<sha256>, settings in Dir/<name>/function.json. A host that
	// starts again on the same Dir has its functions again. It is created if it is missing and used by one host at
	// a time.
	Dir string
	// Secret is the secret access key that belongs to [AccessKeyID].
	Secret string
	// KeepAlive is how long an idle environment is kept. Zero means 5 minutes.
	KeepAlive time.Duration
	// Concurrency is the account's limit: how many invocations may run at a time, over all functions. Zero means
	// 1000, the limit of a new AWS account.
	Concurrency int
	// ScaleOut is how many environments each function may gain in 10 s. Zero means 1000, the rate on AWS.
	ScaleOut int
	// ColdStart is added before a new environment starts, and counted and reported as part of its init, because a
	// local process starts much faster than an environment on AWS. Zero means none.
	ColdStart time.Duration
	// InitTimeout is how long a new environment may take, without ColdStart, until it asks for its first
	// invocation. Zero means 10 s, the limit on AWS.
	InitTimeout time.Duration
	// CPUs are the numbers of the CPUs that environments may use; nil means all that this process may use. See
	// [spawn.Options].
	CPUs []int
	// Enforcement is how environments are held to their sizes; empty means the best that this machine offers. With
	// [enforce.None] memory is sampled and CPU not held.
	Enforcement enforce.Mode
	// User is as whom environments run; nil means as this process's user. It must be able to reach Dir.
	User *spawn.User
	// S3 reads an object that a function's code is in; nil refuses such code.
	S3 func(ctx context.Context, bucket, key string) ([]byte, error)
	// patience is how long the next bytes of a body may take to come; zero means 30 s. Tests have less.
	patience time.Duration
	// Logger receives what the host does, and at level Debug what functions print. Nil means no log.
	Logger *slog.Logger
}

// withDefaults returns o with its zero fields set, or an error that names the field to fix.
func (o Options) withDefaults() (Options, error) {
	switch {
	case o.Dir == "":
		return o, errors.New("no directory for functions: set Dir")
	case o.Secret == "":
		return o, errors.New("no secret, with which callers sign their requests: set Secret")
	case o.KeepAlive < 0 || o.Concurrency < 0 || o.ScaleOut < 0 || o.ColdStart < 0 || o.InitTimeout < 0:
		return o, fmt.Errorf("negative option: keep alive %v, concurrency %d, scale out %d, cold start %v, init timeout %v; "+
			"zero means the default",
			o.KeepAlive, o.Concurrency, o.ScaleOut, o.ColdStart, o.InitTimeout)
	}
	o.KeepAlive = cmp.Or(o.KeepAlive, 5*time.Minute)
	o.Concurrency = cmp.Or(o.Concurrency, 1000)
	o.ScaleOut = min(cmp.Or(o.ScaleOut, 1000), 1_000_000)
	o.InitTimeout = cmp.Or(o.InitTimeout, 10*time.Second)
	o.patience = cmp.Or(o.patience, 30*time.Second)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return o, nil
}

// A Host runs functions. It is an http.Handler; the caller listens. All its methods may be called concurrently.
// Close it to end its environments.
type Host struct {
	opts    Options
	log     *slog.Logger
	store   *store
	spawner *spawn.Spawner
	holder  *holder
	meter   *meter // nil where the kernel holds memory
	mux     *http.ServeMux
	handler http.Handler // the mux, behind a guard
	// These hold a place for each body that arrives from a caller of whom nothing is proven yet.
	unproven, unprovenUploads chan struct{}

	closing chan struct{}  // closed by Close
	work    sync.WaitGroup // requests, environments, the reaper

	admin sync.Mutex // held over each change of a function, with its files; taken before mu

	mu           sync.Mutex
	closed       bool
	functions    map[string]*function
	codes        map[string]*code // by directory
	environments map[*environment]struct{}
	busy         int // invocations that run
}

// FunctionStats counts what one function did since its host started.
type FunctionStats struct {
	// Function is the name of the function.
	Function string
	// Live is how many environments exist, those that still start included.
	Live int
	// Idle is how many environments wait for an invocation.
	Idle int
	// Busy is how many invocations run now.
	Busy int
	// Cold counts the environments that were started.
	Cold int64
	// Warm counts the invocations that found an idle environment.
	Warm int64
	// Throttled counts the invocations refused for lack of concurrency, or of the right to another environment.
	Throttled int64
	// OOM counts the environments killed because they exceeded their memory size.
	OOM int64
	// Timeouts counts the invocations, and inits, that ran too long.
	Timeouts int64
}

// New returns a Host with the functions found in opts.Dir, and removes there what a killed host left behind.
func New(opts Options) (*Host, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	st, err := openStore(opts.Dir)
	if err != nil {
		return nil, err
	}
	configs, err := st.load(opts.Logger)
	if err != nil {
		return nil, errors.Join(err, st.close())
	}
	holder, err := openHolder(st.dir, opts)
	if err != nil {
		return nil, errors.Join(err, st.close())
	}
	spawner, err := spawn.New(spawn.Options{CPUs: opts.CPUs, User: opts.User})
	if err != nil {
		return nil, errors.Join(err, holder.enforcer.Close(), st.close())
	}
	h := &Host{
		opts:     opts,
		log:      opts.Logger,
		store:    st,
		spawner:  spawner,
		holder:   holder,
		unproven: make(chan struct{}, maxUnproven),
		closing:  make(chan struct{}),

		unprovenUploads: make(chan struct{}, maxUnprovenUploads),
		functions:       make(map[string]*function),
		codes:           make(map[string]*code),
		environments:    make(map[*environment]struct{}),
	}
	if !holder.memory || !holder.cpu {
		opts.Logger.Warn("functions are not held to their sizes by the kernel", "mode", holder.enforcer.Mode(),
			"cpu_held", holder.cpu, "memory_held", holder.memory, "memory_sampled", !holder.memory)
	}
	if !holder.memory {
		h.meter = newMeter()
	}
	for _, c := range configs {
		h.functions[c.Name] = &function{config: c, code: h.holdLocked(st.codeDir(c.Name, c.CodeSHA256))}
	}
	h.mux = h.routes()
	guard := access.Guard{
		Rule: func(*http.Request) access.Rule { return access.Rule{Needs: access.Anyone} }, Patience: opts.patience,
		Refuse: func(w http.ResponseWriter, r *http.Request, refusal *access.Refusal) { h.writeError(w, r, refusal) },
	}
	h.handler = guard.Wrap(http.HandlerFunc(h.serve))
	h.work.Go(h.reap)
	return h, nil
}

// ServeHTTP answers one request of the Lambda API. An invocation that has begun runs to its end even when its
// caller goes away, as on AWS.
func (h *Host) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Amzn-Requestid", newID())
	h.handler.ServeHTTP(w, r)
}

// serve answers what the guard admits: any caller of this machine that is no web page. Who it is only its signature
// tells.
func (h *Host) serve(w http.ResponseWriter, r *http.Request) {
	if !h.enter() {
		h.writeError(w, r, errShutdown())
		return
	}
	defer h.work.Done()
	h.mux.ServeHTTP(w, r)
}

// enter registers one piece of work that Close waits for, or reports that the host is closed.
func (h *Host) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.work.Add(1)
	return true
}

// Stats returns the counts of every function, sorted by name.
func (h *Host) Stats() []FunctionStats {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]FunctionStats, 0, len(h.functions))
	for name, f := range h.functions {
		s := f.counts
		s.Function, s.Live, s.Idle, s.Busy = name, f.live, len(f.idle), f.busy
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b FunctionStats) int { return cmp.Compare(a.Function, b.Function) })
	return all
}

// Close kills every environment, and returns when nothing of the host runs any more. The functions stay in Dir.
// Requests that are in progress end with an error.
func (h *Host) Close() error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		h.work.Wait()
		return nil
	}
	h.closed = true
	close(h.closing)
	for env := range h.environments {
		env.kill()
	}
	h.mu.Unlock()

	h.work.Wait()
	h.meter.close()
	h.spawner.Close()
	return errors.Join(h.holder.enforcer.Close(), h.store.close())
}

// isClosing reports whether Close has been called.
func (h *Host) isClosing() bool {
	select {
	case <-h.closing:
		return true
	default:
		return false
	}
}
