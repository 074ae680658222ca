package engine

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/documents"
	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/results"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/space"
	"github.com/spillway-ml/spillway/workers/slot"
)

// stores is what an engine keeps things in, and its way to Temporal.
type stores struct {
	*base

	stream   jetstream.JetStream
	shared   *documents.Documents
	store    *artifacts
	temporal client.Client
	plans    *loop.Plans
	leases   *loop.Leases
	members  *loop.Servers
	results  *results.Results
	ledger   *ledgerstore.Store
	losses   []loss // found when the streams were opened
	details  *details
	output   *logs.Writer
	builds   *build.Store
	chains   *build.Chains
	// catalogue is what all servers have of both; nil where this one is alone.
	catalogue *build.Catalogue
	space     *space.Collector
}

// openStores connects to the servers, makes the streams that are missing and opens what is kept. The ledger is nil
// where it is a file of the state directory.
func openStores(ctx context.Context, base *base, database *ledgerstore.Store) (*stores, error) {
	var err error
	config := base.config
	s := &stores{
		base: base, ledger: database, builds: build.NewStore(config.StateDir, nil), chains: build.NewChains(config.StateDir),
	}
	if s.stream, err = s.connectNATS("spillway"); err != nil {
		return nil, err
	}
	if err = s.openShared(ctx); err != nil {
		return nil, err
	}
	if s.store, err = openArtifacts(ctx, base, s.shared); err != nil {
		return nil, err
	}
	if err = admitStages(ctx, config, s.store.files); err != nil {
		return nil, err
	}
	keys := s.servers.own.Keys()
	options := s.servers.TemporalOptions()
	options.Logger = sdklog.NewStructuredLogger(s.logger)
	options.ExternalStorage = artifact.Offload(s.store, artifact.OffloadThreshold)
	options.ConnectionOptions.DialOptions = append(options.ConnectionOptions.DialOptions, slot.TellOutcomes(s.life))
	if s.temporal, err = client.DialContext(ctx, options); err != nil {
		return nil, fmt.Errorf("connect to Temporal at %s: %w", s.addresses.Temporal, err)
	}
	s.onClose("the connection to Temporal", func(context.Context) error { s.temporal.Close(); return nil })
	if err = s.openLedger(ctx); err != nil {
		return nil, err
	}
	s.results = results.New(s.stream, s.store, results.Signing{Public: keys.PublicKey(), Sign: keys.Sign})
	s.output = logs.NewWriter(s.stream, logs.WriterOptions{Logger: s.logger})
	s.details = newDetails(s.stream, s.ledger)
	if s.plans, err = loop.NewPlans(ctx, s.stream, s.logger); err != nil {
		return nil, err
	}
	if s.leases, err = loop.NewLeases(ctx, s.stream, s.logger); err != nil {
		return nil, err
	}
	if s.members, err = loop.NewServers(ctx, s.stream); err != nil {
		return nil, err
	}
	if err = s.admitServer(ctx); err != nil {
		return nil, err
	}
	s.openCatalogue()
	if s.space, err = openSpace(ctx, s); err != nil {
		return nil, err
	}
	return s, nil
}

// openLedger opens the ledger, makes the streams that are missing, and looks for what those that are there have lost.
func (s *stores) openLedger(ctx context.Context) (err error) {
	if s.ledger == nil {
		path := ledgerstore.Path(s.config.StateDir)
		if s.ledger, err = ledgerstore.Open(ctx, path, &ledgerstore.Options{Logger: s.logger}); err != nil {
			return err
		}
		s.onClose("the ledger", func(context.Context) error { return s.ledger.Close() })
	}
	if s.losses, err = s.findLosses(ctx); err != nil {
		return err
	}
	if err = s.continueLoop(ctx); err != nil {
		return err
	}
	return ensureStreams(ctx, s.stream)
}

// openOutput takes what an attempt prints.
func (s *stores) openOutput(source wire.LogSource) activities.Output { return s.output.Attempt(source) }
