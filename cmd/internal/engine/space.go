package engine

import (
	"context"
	"io"
	"path/filepath"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/retention"
	"github.com/spillway-ml/spillway/cmd/internal/space"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// openSpace returns what gives space back. What a killed engine was about to remove is put back before anybody reads.
func openSpace(ctx context.Context, s *stores) (*space.Collector, error) {
	disk, err := space.DiskOf(s.config.StateDir)
	if err != nil {
		return nil, err
	}
	room := disk.Size
	if s.store.files == nil {
		room = Boundless
	}
	return space.New(ctx, space.Options{
		StateDir: s.config.StateDir, Policy: s.keepPolicy(room), Store: s.store,
		Temporal: s.temporal, JetStream: s.stream, Runs: s.knownRuns,
		Age: func(ctx context.Context, now time.Time) error {
			return s.ledger.Forget(ctx, now, s.config.KeepHours)
		},
		Chains: filepath.Join(s.config.StateDir, "chains"), Builds: s.catalogue.Holds,
		Several: len(s.config.NATS.URLs) > 0, Logger: s.logger,
	})
}

// keepPolicy is KeepPolicy for a Temporal that may forget runs earlier: what only they name is of no use then.
func (s *stores) keepPolicy(room quantity.Bytes) retention.Policy {
	policy := KeepPolicy(s.config.KeepFor, s.config.KeepBytes, room)
	if most := s.servers.Retention(); most > 0 && most < policy.KeepFor {
		policy = KeepPolicy(most, s.config.KeepBytes, room)
	}
	return policy
}

// knownRuns are the runs that the ledger knows.
func (s *stores) knownRuns(ctx context.Context, since time.Time) (known []space.KnownRun, err error) {
	err = s.ledger.EachRun(ctx, since, func(run string, began, ended, told time.Time) error {
		known = append(known, space.KnownRun{Run: run, Started: began, Ended: ended, Told: told})
		return nil
	})
	return known, err
}

// leastGrace is how long what was just written stays however short the rest is kept: between a large payload and the
// history that names it lies a request to Temporal, which may be tried again.
const leastGrace = time.Minute

// KeepPolicy is the policy of an engine whose state directory is in a file system of this size; what is 0 is the usual.
func KeepPolicy(keepFor time.Duration, keepBytes, fileSystem quantity.Bytes) retention.Policy {
	policy := retention.Usual(fileSystem)
	if fileSystem == Boundless {
		policy.KeepBytes = Boundless
	}
	if keepFor > 0 {
		policy.KeepFor = keepFor
	}
	if keepBytes > 0 { // who has said how much there may be means it
		policy.KeepBytes, policy.KeepLeast = keepBytes, 0
	}
	policy.KeepLeast = min(policy.KeepLeast, policy.KeepFor)
	policy.Grace = min(policy.Grace, max(policy.KeepFor, leastGrace))
	return policy
}

// giveSpaceBack collects now and then, and tells of a disk that is nearly full.
func (e *Engine) giveSpaceBack(ctx context.Context) {
	if e.observer.whole(ctx) != nil {
		return
	}
	var last alerting.Alert
	e.space.Run(ctx, func(free *quantity.Bytes) {
		if free != nil {
			last = alerting.DiskScarce(*free, e.now())
			e.alert(last)
		} else if last.ID != "" {
			e.alert(alerting.DiskEased(last, e.now()))
		}
	})
}

// Collect gives space back, or says what would go.
func (e *Engine) Collect(ctx context.Context, dry bool) (retention.Collection, error) {
	if err := e.observer.whole(ctx); err != nil { // until then the ledger knows half of the runs
		return retention.Collection{}, err
	}
	if leads := e.leader.Standing(); leads.Other && !e.lead.leads() {
		return retention.Collection{}, web.Conflict("ask that one: "+e.whereLeads(leads),
			"another server leads, which alone gives space back")
	}
	return e.space.Collect(ctx, dry)
}

// withSpace adds to an ended run what is known of the artifacts that only it had reached.
func (e *Engine) withSpace(view ledger.RunView) ledger.RunView {
	if reason, at, given := e.space.Given(view.Run); given && view.State != predictor.RunRunning && view.Notice == "" {
		view.Notice = "its artifacts were removed on " + at.UTC().Format(time.DateOnly) + " to give space back: " + reason
	}
	return view
}

// sentArtifacts is the store as those see it who send artifacts to the engine and fetch them: nothing that the engine
// knows of may name what they send yet, nor what they ask for.
type sentArtifacts struct {
	artifact.Store
}

var _ activities.Store = sentArtifacts{}

// Put stores what is sent, and keeps it as if a run that has just ended had made it.
func (s sentArtifacts) Put(ctx context.Context, r io.Reader) (activities.Ref, error) {
	ref, err := s.Store.Put(ctx, r)
	if err != nil {
		return activities.Ref{}, err
	}
	return ref, s.Pin(ctx, ref.Digest)
}

// Open returns the bytes of digest, which stay for a while, since whoever asks may be about to name them.
func (s sentArtifacts) Open(ctx context.Context, digest string) (io.ReadCloser, error) {
	if err := s.Touch(ctx, digest); err != nil {
		return nil, err
	}
	return s.Store.Open(ctx, digest)
}
