package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/slot"
)

// mostLacks bounds of how many builds a host remembers that it cannot run them.
const mostLacks = 256

// lack notes that this host cannot run a build, and tells so soon: nothing of it is placed here any more.
func (a *Agent) lack(b build, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, known := a.lacks[b]; known || len(a.lacks) >= mostLacks {
		return
	}
	if a.lacks == nil {
		a.lacks = make(map[build]string)
	}
	a.lacks[b] = why
	a.touch()
}

// lacking are the builds that this host cannot run, sorted.
func (a *Agent) lacking() (all []predictor.Lack) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, b := range slices.SortedFunc(maps.Keys(a.lacks), func(x, y build) int {
		return strings.Compare(x.app+"@"+x.digest, y.app+"@"+y.digest)
	}) {
		all = append(all, predictor.Lack{App: b.app, Build: b.digest, Why: a.lacks[b]})
	}
	return all
}

// misplaced tells of a task that this host cannot run, and others may: of a build that it lacks, or a command that runs
// in a directory of the machine that it was started on, where this host is another.
func (a *Agent) misplaced(task wire.Task, input json.RawMessage) (ending slot.Ending, found bool) {
	b := build{task.Stage.App, task.Stage.Build}
	var command struct {
		InPlace string `json:"in_place"`
	}
	if a.remote && task.Command && json.Unmarshal(input, &command) == nil && command.InPlace != "" {
		a.lack(b, fmt.Sprintf("its command runs in %s of the machine that it was started on, and this host is another: "+
			"leave --in-place out, so that its files come along", command.InPlace))
	}
	a.mu.Lock()
	why, found := a.lacks[b]
	a.mu.Unlock()
	return slot.Ending{Outcome: predictor.Lost, Cause: predictor.CauseVenue, Message: why}, found
}
