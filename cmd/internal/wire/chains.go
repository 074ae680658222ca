package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/results"
	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// chainWorkers runs the workflows of chains in this process: a chain is data, and its workflow code is the engine's own.
type chainWorkers struct {
	stored   *build.Chains
	temporal client.Client
	recorder *loop.Recorder
	results  *results.Results
	window   int // of a run at first, in tasks of one stage
}

// run polls the workflow queue of a chain until ctx ends or polling fails for good.
func (w *chainWorkers) run(ctx context.Context, id buildID, c chain.Chain) error {
	host := workflows.Host{
		App: id.app, Build: id.build, Stages: c.Stages(), Window: w.window, Tell: w.recorder.Tell, Find: w.results.Find,
		End: func(ctx context.Context, over workflows.Ended) error {
			return w.recorder.End(ctx, over.Started, over.Ended, over.Done)
		},
	}
	failed := make(chan error, 1)
	polling := workflows.WorkerOptions(host)
	polling.OnFatalError = func(err error) {
		select {
		case failed <- err:
		default: // one is enough to start it again
		}
	}
	queue := worker.New(w.temporal, loopwire.WorkflowQueue(id.app, id.build), polling)
	workflows.Register(queue, host, []workflows.AnyPipeline{c.Pipeline()})
	if err := queue.Start(); err != nil {
		return fmt.Errorf("poll %s: %w", loopwire.WorkflowQueue(id.app, id.build), err)
	}
	defer queue.Stop()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// RegisterChain stores a chain and serves it.
func (e *Engine) RegisterChain(ctx context.Context, c chain.Chain) (web.App, error) {
	path, fresh, err := e.chains.Put(c)
	if err != nil {
		return web.App{}, err
	}
	app := servedChain(c, path)
	if err := e.apps.serve(ctx, app); err != nil {
		if fresh { // the next engine must not find it
			err = errors.Join(err, e.chains.Remove(c.Name(), c.Digest()))
		}
		return web.App{}, err
	}
	return describeApp(app, true), nil
}

// servedChain is a chain as the app of one pipeline that it is to all others.
func servedChain(c chain.Chain, path string) served {
	return served{App: build.App{Descriptor: c.App(), Digest: c.Digest(), Path: path}, chain: &c}
}

// serveStoredChains serves the newest chain of each name again, so that events, retries and schedules find it after a restart. The chain of a
// single command is served when a command is run, and runs of older chains that go on find their worker by apps.tidy.
func (e *Engine) serveStoredChains(ctx context.Context) error {
	newest, err := e.chains.Newest()
	if err != nil {
		return err
	}
	for _, stored := range newest {
		if takesAnyCommand(&stored.Chain) {
			continue
		}
		if err := e.apps.serve(ctx, servedChain(stored.Chain, stored.Path)); err != nil {
			e.logger.WarnContext(ctx, "a stored chain is not served", "chain", stored.Name(), "path", stored.Path, "error", err)
		}
	}
	return nil
}

// takesAnyCommand reports whether c is the chain of a command that comes with each run.
func takesAnyCommand(c *chain.Chain) bool {
	if c == nil {
		return false
	}
	single, err := chain.Single(c.Name())
	return err == nil && single.Digest() == c.Digest()
}

// Result returns the result of a run, whatever its size.
func (e *Engine) Result(ctx context.Context, run string) (json.RawMessage, error) {
	view, err := e.Run(ctx, run)
	if err != nil {
		return nil, err
	}
	if view.State != predictor.RunSucceeded {
		return nil, web.Conflict("", "run %q is %s and has no result", run, view.State)
	}
	var result json.RawMessage
	if err := e.temporal.GetWorkflow(ctx, run, "").Get(ctx, &result); err != nil {
		return nil, fmt.Errorf("read the result of run %s: %w", run, err)
	}
	return result, nil
}
