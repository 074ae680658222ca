package temporalproxy

import (
	"sync"
	"time"

	"go.temporal.io/api/workflowservice/v1"
)

// remembered is how long at least a worker may use what it was given. Temporal lets a workflow task take two minutes at
// most.
const remembered = 3 * time.Minute

// run names one execution of a workflow.
type run struct{ workflow, run string }

// given is what Temporal has given the worker: the tokens of tasks and the pages of histories, which are not signed and
// could be forged, and the runs that the tasks are of.
type given struct {
	mu     sync.Mutex
	since  time.Time        // when recent was begun
	recent map[string]run   // by token or page
	before map[string]run   // what recent was before
	runs   map[run]struct{} // those of recent
	ran    map[run]struct{} // those of before
	owners map[run]owner    // of runs and their parents, as far as they were asked for lately
	owned  map[run]owner    // what owners was before
}

func newGiven() *given {
	return &given{
		recent: map[string]run{}, before: map[string]run{}, runs: map[run]struct{}{}, ran: map[run]struct{}{},
		owners: map[run]owner{}, owned: map[run]owner{},
	}
}

// owner is whose a run is; known is false where nobody has asked of late.
func (g *given) owner(of run) (o owner, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o, known = g.owners[of]; !known {
		if o, known = g.owned[of]; known {
			g.owners[of] = o
		}
	}
	return o, known
}

// own remembers whose a run is.
func (g *given) own(of run, o owner) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.owners[of] = o
}

// of is the run that the token or page is of; ok is false when the worker was not given it.
func (g *given) of(token []byte) (of run, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if of, ok = g.recent[string(token)]; !ok {
		of, ok = g.before[string(token)]
	}
	return of, ok
}

// holds says whether the worker was given a task of the run.
func (g *given) holds(of run) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, now := g.runs[of]
	_, once := g.ran[of]
	return now || once
}

// note remembers what an answer gives.
func (g *given) note(request, response any, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.Sub(g.since) >= remembered {
		g.since, g.before, g.ran, g.owned = now, g.recent, g.runs, g.owners
		g.recent, g.runs, g.owners = map[string]run{}, map[run]struct{}{}, map[run]owner{}
	}
	switch out := response.(type) {
	case *workflowservice.PollWorkflowTaskQueueResponse:
		g.task(out)
	case *workflowservice.RespondWorkflowTaskCompletedResponse:
		g.task(out.GetWorkflowTask())
	case *workflowservice.GetWorkflowExecutionHistoryResponse:
		if asked, is := request.(*workflowservice.GetWorkflowExecutionHistoryRequest); is && len(out.GetNextPageToken()) > 0 {
			g.recent[string(out.GetNextPageToken())] = runOf(asked.GetExecution())
		}
	case *workflowservice.PollNexusTaskQueueResponse:
		if len(out.GetTaskToken()) > 0 {
			g.recent[string(out.GetTaskToken())] = run{}
		}
	}
}

// task remembers a workflow task. A poll that ended without one gives an empty task.
func (g *given) task(task *workflowservice.PollWorkflowTaskQueueResponse) {
	if len(task.GetTaskToken()) == 0 {
		return
	}
	of := runOf(task.GetWorkflowExecution())
	g.recent[string(task.GetTaskToken())] = of
	g.runs[of] = struct{}{}
	// The first task of a run tells whose it is, and spares a question; a child's is found out by its parent.
	if started := beginning(task.GetHistory()); started != nil && started.GetParentWorkflowExecution() == nil {
		if o, err := ownerIn(started.GetMemo()); err == nil {
			g.owners[of] = o
		}
	}
	if page := task.GetNextPageToken(); len(page) > 0 {
		g.recent[string(page)] = of
	}
}
