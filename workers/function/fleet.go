package function

import (
	"os"
	"slices"
	"time"
)

// function is one function and its environments. Host.mu guards it.
type function struct {
	config  config
	code    *code
	edition int // rises when what its environments run changes
	deleted bool
	idle    []*environment // the one used last at the end
	live    int
	busy    int
	ramp    ramp
	counts  FunctionStats // the counters only
}

// code is one unzipped deployment. Its directory stays while a function or an environment refers to it. Host.mu
// guards it.
type code struct {
	dir  string
	refs int
}

// Reasons of a refusal for lack of concurrency, as the Invoke API names them:
// https://docs.aws.amazon.com/lambda/latest/api/API_Invoke.html (TooManyRequestsException). Which one stands for the
// rate of scaling out is not documented.
const (
	reasonAccount  = "ConcurrentInvocationLimitExceeded"
	reasonReserved = "ReservedFunctionConcurrentInvocationLimitExceeded"
	reasonRate     = "FunctionInvocationRateLimitExceeded"
)

// scaleOutPeriod is the time in which a function may gain as many environments as the rate of scaling out says.
const scaleOutPeriod = 10 * time.Second

// ramp limits how fast one function gains environments. It refills continuously, and what is not used is not saved up:
// https://docs.aws.amazon.com/lambda/latest/dg/scaling-behavior.html. The zero value is full.
type ramp struct {
	fullAt time.Time // when it is full again; a full one may start as many environments as it does in a period
}

// take starts one more environment at now, of at most rate in each period, or reports that it may not.
func (r ramp) take(now time.Time, rate int) (after ramp, ok bool) {
	if r.fullAt.Before(now) {
		r.fullAt = now
	}
	after = ramp{r.fullAt.Add(scaleOutPeriod / time.Duration(rate))}
	if after.fullAt.Sub(now) > scaleOutPeriod {
		return r, false
	}
	return after, true
}

// claim admits one invocation of f, or refuses it because the concurrency is used up that f has reserved or, where it
// has none, that the account has left. Each claim is followed by one unclaim.
func (h *Host) claim(f *function) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if reason := h.exceededLocked(f); reason != "" {
		f.counts.Throttled++
		return errThrottled(reason)
	}
	h.busy++
	f.busy++
	return nil
}

// exceededLocked returns which limit refuses another invocation of f; empty where none does. What functions have
// reserved is theirs alone, whether they use it or not:
// https://docs.aws.amazon.com/lambda/latest/dg/configuration-concurrency.html.
func (h *Host) exceededLocked(f *function) (reason string) {
	if reserved := f.config.Reserved; reserved != nil {
		if f.busy >= *reserved {
			return reasonReserved
		}
		return ""
	}
	left := h.opts.Concurrency - h.busy
	for _, other := range h.functions {
		if reserved := other.config.Reserved; reserved != nil {
			left -= max(0, *reserved-other.busy)
		}
	}
	if left <= 0 {
		return reasonAccount
	}
	return ""
}

// unclaim ends what claim admitted.
func (h *Host) unclaim(f *function) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.busy--
	f.busy--
}

// take returns an environment of f for an admitted invocation: the idle one used last, or a new one that is not
// started yet. It refuses where f may not gain another one yet.
func (h *Host) take(f *function) (env *environment, fresh bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, false, errShutdown()
	}
	if n := len(f.idle); n > 0 {
		env = f.idle[n-1]
		f.idle = f.idle[:n-1]
		f.counts.Warm++
		return env, false, nil
	}
	if f.deleted {
		return nil, false, errNotFound(f.config.Name)
	}
	var ok bool
	if f.ramp, ok = f.ramp.take(time.Now(), h.opts.ScaleOut); !ok {
		f.counts.Throttled++
		return nil, false, errThrottled(reasonRate)
	}
	env = newEnvironment(f, h.opts.patience, h.opts.Logger)
	f.code.refs++
	f.live++
	f.counts.Cold++
	return env, true, nil
}

// giveBack makes env available again, or ends it when the function has changed since it started.
func (h *Host) giveBack(env *environment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := env.function
	if h.closed || f.deleted || env.edition != f.edition {
		env.kill()
		return
	}
	select {
	case <-env.exited: // gone has run or waits for the lock; it does not look for env again
		return
	default:
	}
	env.idleSince = time.Now()
	f.idle = append(f.idle, env)
}

// register makes env known to Close, or reports that the host is closed.
func (h *Host) register(env *environment) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.environments[env] = struct{}{}
	return true
}

// gone forgets an environment that has exited or was never started.
func (h *Host) gone(env *environment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.environments, env)
	f := env.function
	f.live--
	if i := slices.Index(f.idle, env); i >= 0 {
		f.idle = slices.Delete(f.idle, i, i+1)
	}
	h.dropLocked(env.code)
}

// count changes the counters of f.
func (h *Host) count(f *function, change func(*FunctionStats)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&f.counts)
}

// holdLocked returns the code in dir with one more reference.
func (h *Host) holdLocked(dir string) *code {
	c, ok := h.codes[dir]
	if !ok {
		c = &code{dir: dir}
		h.codes[dir] = c
	}
	c.refs++
	return c
}

// dropLocked gives one reference back and removes code that nobody uses. The caller belongs to h.work, so Close
// waits for the removal too.
func (h *Host) dropLocked(c *code) {
	c.refs--
	if c.refs > 0 {
		return
	}
	delete(h.codes, c.dir)
	trash, err := h.store.discard(c.dir)
	if err != nil {
		h.log.Warn("code not removed", "dir", c.dir, "error", err)
		return
	}
	h.work.Go(func() {
		if err := os.RemoveAll(trash); err != nil {
			h.log.Warn("code not removed", "dir", trash, "error", err)
		}
	})
}

// retireLocked makes the present environments of f the last of their edition: the idle ones end now, the others
// when their invocation does.
func (f *function) retireLocked() {
	f.edition++
	for _, env := range f.idle {
		env.kill()
	}
	f.idle = nil
}

// reap ends environments that were idle for longer than KeepAlive, until Close.
func (h *Host) reap() {
	ticker := time.NewTicker(min(max(h.opts.KeepAlive/4, time.Millisecond), time.Second))
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			h.reapAt(now)
		case <-h.closing:
			return
		}
	}
}

// reapAt ends the environments that are idle for longer than KeepAlive at now. The idle ones of a function are
// in the order of their last use, so they are at the front.
func (h *Host) reapAt(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.functions {
		n := 0
		for n < len(f.idle) && now.Sub(f.idle[n].idleSince) > h.opts.KeepAlive {
			f.idle[n].kill()
			n++
		}
		f.idle = slices.Delete(f.idle, 0, n)
	}
}
