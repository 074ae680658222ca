package engine

import (
	"context"
	"fmt"
	"strings"

	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// withheldWhy is why a host whose agent shows no proofs has no task of a stage that names secrets: they go only to who
// shows that it was given an attempt, so each attempt there would fail.
const withheldWhy = "the stage has secrets, and the host's agent is of a version that does not show which attempts " +
	"it was given: bring it to this version"

// unreadWhy is why such a host has no task of a build of which the engine cannot read which stages have secrets.
const unreadWhy = "which stages of the build have secrets cannot be read now, and the host's agent is of a version " +
	"that does not show which attempts it was given: bring it to this version"

// withheld says why a host may not poll a queue; nil where it may.
func (f *front) withheld(ctx context.Context, host, queue string) error {
	if !f.hosts.Unproven(host) {
		return nil
	}
	workflows, _, _ := strings.Cut(queue, "/")
	app, build, _ := loopwire.ParseWorkflowQueue(workflows)
	declared, err := f.declaredStages(ctx, predictor.StageID{App: app, Build: build})
	if err != nil { // what has secrets is not known
		return fmt.Errorf("find out whether queue %.200q is of a stage with secrets: %w", queue, err)
	}
	if stage, has := secretStage(declared, app, build, queue); has {
		return fmt.Errorf("stage %s: %s", stage, withheldWhy)
	}
	return nil
}

// secretStage is the stage with secrets, among those of a build, that a queue is of, whichever team's.
func secretStage(declared []loopwire.Stage, app, build, queue string) (name string, is bool) {
	for _, stage := range declared {
		id := predictor.StageID{App: app, Build: build, Name: stage.Name}
		if len(stage.Secrets) > 0 && id.HasOfAnyTeam(queue) {
			return stage.Name, true
		}
	}
	return "", false
}

// withhold notes on the hosts whose agents show no proofs that they lack the stages with secrets, so that nothing of
// these is placed there.
func (f *front) withhold(ctx context.Context, living []predictor.Host) []predictor.Host {
	var lacks []predictor.Lack
	for i, host := range living {
		if !f.hosts.Unproven(host.ID) {
			continue
		}
		if lacks == nil {
			lacks = f.secretLacks(ctx)
		}
		living[i].Lacks = append(append([]predictor.Lack{}, host.Lacks...), lacks...)
	}
	return living
}

// secretLacks are the stages with secrets of the builds whose tasks may run, as what hosts lack.
func (f *front) secretLacks(ctx context.Context) []predictor.Lack {
	lacks := []predictor.Lack{}
	for _, id := range f.apps.running() {
		declared, err := f.declaredStages(ctx, predictor.StageID{App: id.app, Build: id.build})
		if err != nil {
			f.logger.DebugContext(ctx, "the stages of a build are not known", "build", id.String(), "error", err)
		}
		lacks = append(lacks, id.secretLacks(declared, err)...)
	}
	return lacks
}

// secretLacks are those of one build by what it declares: all of its stages where that cannot be read, since the proxy
// refuses the polls of each of them then.
func (id buildID) secretLacks(declared []loopwire.Stage, unread error) (lacks []predictor.Lack) {
	if unread != nil {
		return []predictor.Lack{{App: id.app, Build: id.build, Why: unreadWhy}}
	}
	for _, stage := range declared {
		if len(stage.Secrets) > 0 {
			lacks = append(lacks, predictor.Lack{App: id.app, Build: id.build, Stage: stage.Name, Why: withheldWhy})
		}
	}
	return lacks
}
