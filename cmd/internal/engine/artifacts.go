package engine

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go/logging"

	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/artifact/relay"
	"github.com/spillway-ml/spillway/activities/artifact/s3store"
	"github.com/spillway-ml/spillway/activities/documents"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// InFiles is the value of Config.Artifacts for files in the state directory.
const InFiles = "files"

// artifactsFile is the file below the state directory that says where its artifacts are, where that is elsewhere.
const artifactsFile = "artifacts.json"

// artifactsKept is its content.
type artifactsKept struct {
	// ID names the stack in the store; it never changes. All servers of a stack have the same.
	ID string `json:"id"`
	// Location is where the artifacts are. Empty is in files: the ID was made, and nothing stored yet.
	Location string `json:"location,omitempty"`
}

// ArtifactsOf returns the location at which a state directory keeps its artifacts; InFiles where they are in files.
func ArtifactsOf(stateDir string) (string, error) {
	kept, err := readArtifactsKept(stateDir)
	return cmp.Or(kept.Location, InFiles), err
}

// FunctionPlace is what awslambda.Options.Place is for functions whose artifacts are at a location, what [ArtifactsOf]
// returns or Config.Artifacts, and which are not those of the engine's own host: these have none. In S3 each state
// directory has its own place, and in files its directory is one.
func FunctionPlace(stateDir, location string) (string, error) {
	if location == InFiles {
		config := Config{StateDir: stateDir}
		return artifact.URL(config.artifactDir()), nil
	}
	at, err := s3store.Parse(location)
	if err != nil {
		return "", fmt.Errorf("artifact store: %w; supported: %s", err, s3store.Supported)
	}
	return at.Place(), nil
}

func readArtifactsKept(stateDir string) (kept artifactsKept, err error) {
	name := filepath.Join(stateDir, artifactsFile)
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return kept, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &kept)
	}
	if err == nil && kept.ID == "" {
		err = errors.New("it has no ID")
	}
	if err != nil {
		return kept, fmt.Errorf("read where artifacts are: %s: %w; put it back from a copy: without it nobody knows", name,
			err)
	}
	return kept, nil
}

func (k artifactsKept) write(stateDir string) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // people read it
	encoder.SetIndent("", "  ")
	err := encoder.Encode(k)
	if err == nil {
		err = safefile.WriteFile(filepath.Join(stateDir, artifactsFile), text.Bytes(), 0o600, false)
	}
	if err != nil {
		return fmt.Errorf("note where artifacts are: %w", err)
	}
	return nil
}

// artifacts is where an engine keeps artifacts, and by which URL other processes reach them.
type artifacts struct {
	artifact.Store

	relayed  http.Handler    // answers for artifacts, their board and a parameter server
	files    *artifact.Files // nil where they are elsewhere
	location string          // InFiles, or where else
	local    string          // URL for processes of this machine; it may hold a secret
	remote   string          // URL for functions that are elsewhere
	server   string          // URL of the parameter server for processes of this machine; it holds a secret
	notes    []string        // what the user may want to know of the store
}

// openArtifacts opens the store that the configuration names, or else the one that the state directory has used before.
// Another one than that is refused: what runs name would be missing.
func openArtifacts(ctx context.Context, base *base, shared *documents.Documents) (*artifacts, error) {
	config := base.config
	kept, err := readArtifactsKept(config.StateDir)
	if err != nil {
		return nil, err
	}
	var all *documents.Set[artifactsKept] // nil where nobody shares them
	if len(config.NATS.URLs) > 0 {
		all = documents.Of[artifactsKept](shared, "artifacts", nil)
		there, known := all.Get(artifactsDocument)
		if known && kept.ID != "" && kept.ID != there.ID {
			return nil, fmt.Errorf("the artifacts of %s are not those of the stack whose NATS this is: choose another state "+
				"directory with --state DIR, or another NATS", config.StateDir)
		}
		kept.ID, kept.Location = cmp.Or(there.ID, kept.ID), cmp.Or(there.Location, kept.Location)
	}
	wanted := cmp.Or(config.Artifacts, kept.Location, InFiles)
	if wanted == InFiles {
		if kept.Location != "" {
			return nil, moved(config, kept.Location, wanted)
		}
		files, err := artifact.Open(config.artifactDir())
		if err != nil {
			return nil, err
		}
		relayed := relay.Handler(relay.Of(files), base.logger)
		server, err := startRelay(ctx, base, relayed)
		if err != nil {
			return nil, err
		}
		location := artifact.URL(config.artifactDir())
		return &artifacts{
			Store: files, relayed: relayed, files: files, location: InFiles, local: location, remote: location,
			server: server,
		}, nil
	}
	return openS3(ctx, base, kept, wanted, all)
}

// artifactsDocument is the name of the document that says where the artifacts of the stack are.
const artifactsDocument = "store"

// keep writes down where artifacts are, for the commands that need no engine, and for all servers of the stack.
func (k artifactsKept) keep(ctx context.Context, stateDir string, all *documents.Set[artifactsKept]) error {
	if err := k.write(stateDir); err != nil || all == nil {
		return err
	}
	return all.Change(ctx, artifactsDocument, func(there artifactsKept, known bool) (artifactsKept, error) {
		if known && there.ID != k.ID {
			return there, errors.New("another server has just begun to keep artifacts for the stack: start this one again")
		}
		return k, nil
	})
}

// openS3 opens a store in S3 and relays it to the processes of this machine.
func openS3(
	ctx context.Context, base *base, kept artifactsKept, wanted string, all *documents.Set[artifactsKept],
) (*artifacts, error) {
	config := base.config
	location, err := s3store.Parse(wanted)
	if err != nil {
		return nil, fmt.Errorf("artifact store: %w; supported: %s", err, s3store.Supported)
	}
	if err := mayMove(ctx, config, kept, location); err != nil {
		return nil, err
	}
	spool := filepath.Join(config.StateDir, "spool")
	if err := os.MkdirAll(spool, 0o700); err != nil {
		return nil, fmt.Errorf("make room for what is sent to S3: %w", err)
	}
	store, err := s3At(ctx, &location, spool)
	if err != nil {
		return nil, err
	}
	if kept.ID == "" { // it is known before it is claimed with: a kill in between loses nothing
		kept.ID = rand.Text()
	}
	if err := kept.keep(ctx, config.StateDir, all); err != nil {
		return nil, err
	}
	notes, err := store.Claim(ctx, kept.ID)
	if err != nil {
		return nil, err
	}
	if kept.Location != location.String() {
		kept.Location = location.String()
		if err := kept.keep(ctx, config.StateDir, all); err != nil {
			return nil, err
		}
	}
	for _, note := range notes {
		base.logger.WarnContext(ctx, "artifact store", "note", note)
	}
	relayed := relay.Handler(relay.Of(store), base.logger)
	server, err := startRelay(ctx, base, relayed)
	if err != nil {
		return nil, err
	}
	return &artifacts{
		Store: store, relayed: relayed, location: location.String(), local: server, remote: location.String(),
		server: server, notes: notes,
	}, nil
}

// s3At returns the store at a location, to which it adds the region that the AWS configuration gives. It contacts
// nobody.
func s3At(ctx context.Context, location *s3store.Location, spool string) (*s3store.Store, error) {
	shared, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithLogger(logging.Nop{}))
	if err != nil {
		return nil, fmt.Errorf("artifact store: load the AWS configuration: %w", err)
	}
	location.Region = cmp.Or(location.Region, shared.Region)
	if location.Region == "" && location.Endpoint != "" {
		location.Region = "us-east-1" // what servers that are not AWS take, unless they are told otherwise
	}
	client, _ := shared.HTTPClient.(*awshttp.BuildableClient) // with AWS_CA_BUNDLE, which is of no use to another kind
	return s3store.New(*location, s3store.Options{Credentials: shared.Credentials, Spool: spool, Client: client})
}

// TryArtifacts tries what an engine does with the store at a location, which is not InFiles, and leaves nothing there.
// Notes are what does not keep it from working, and costs.
func TryArtifacts(ctx context.Context, location string) (notes []string, err error) {
	at, err := s3store.Parse(location)
	if err != nil {
		return nil, fmt.Errorf("artifact store: %w; supported: %s", err, s3store.Supported)
	}
	store, err := s3At(ctx, &at, "") // what is tried with is never spooled
	if err != nil {
		return nil, err
	}
	return store.Try(ctx)
}

// startRelay serves artifacts, their board and a parameter server to processes of this machine, and returns its URL.
func startRelay(ctx context.Context, base *base, relayed http.Handler) (string, error) {
	server, err := relay.Listen(ctx, relayed, base.servers.own.Keys().ArtifactsToken(), base.logger)
	if err != nil {
		return "", err
	}
	base.onClose("the relay of artifacts", func(context.Context) error { return server.Close() })
	base.working.Go(func() {
		if err := server.Serve(); err != nil {
			base.fail(err)
		}
	})
	return server.URL(), nil
}

// mayMove refuses a place where the artifacts of the state directory are not.
func mayMove(ctx context.Context, config *Config, kept artifactsKept, to s3store.Location) error {
	if kept.Location != "" {
		before, err := s3store.Parse(kept.Location)
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(config.StateDir, artifactsFile), err)
		}
		if before.Place() != to.Place() {
			return moved(config, kept.Location, to.String())
		}
		return nil
	}
	if _, err := os.Stat(config.artifactDir()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	files, err := artifact.Open(config.artifactDir())
	if err != nil {
		return err
	}
	some := errors.New("there are some")
	err = files.List(ctx, func(artifact.Info) error { return some })
	if errors.Is(err, some) {
		return moved(config, InFiles, to.String())
	}
	return err
}

// moved is the error of a state directory whose artifacts are elsewhere, which says how to copy them.
func moved(config *Config, from, to string) error {
	stateDir, remove := config.StateDir, filepath.Join(config.StateDir, artifactsFile)
	if len(config.NATS.URLs) > 0 {
		remove += " of each server, and what they share of it (`nats kv rm " + wire.SharedBucket + " artifacts.store`)"
	}
	was, is := spotOf(stateDir, from), spotOf(stateDir, to)
	text := fmt.Sprintf("the artifacts of %s are in %s, and would be missing in %s: leave --artifacts out, or choose "+
		"another state directory with --state DIR", stateDir, was.shown, is.shown)
	switch {
	case to == InFiles: // what was put while it was about to be removed has no name that files know
		return fmt.Errorf("%s; they cannot be moved from S3 into files", text)
	case from == InFiles:
		return fmt.Errorf("%s; to move them, stop the engine and copy them first (aws s3 sync %s %s%s --exclude "+
			"'partial/*' --exclude 'aside/*' --exclude 'pins/*' --exclude refused), then move %s away; what was sent and no "+
			"run has used has to be sent again", text, was.synced, is.synced, is.server, was.synced)
	case was.server != is.server:
		return fmt.Errorf("%s; to move them, stop the engine and copy all of it but spillway-owner from server to server "+
			"first, then remove %s", text, remove)
	}
	return fmt.Errorf("%s; to move them, stop the engine and copy all of it first (aws s3 sync %s %s%s --exclude "+
		"spillway-owner), then remove %s", text, was.synced, is.synced, is.server, remove)
}

// spot is a location as people read it, as `aws s3 sync` takes it, and which server that is to ask where it is not AWS.
type spot struct{ shown, synced, server string }

func spotOf(stateDir, at string) spot {
	location, err := s3store.Parse(at)
	switch {
	case at == InFiles:
		dir := filepath.Join(stateDir, "artifacts")
		return spot{shown: dir, synced: dir}
	case err != nil: // it was parsed before
		return spot{shown: at, synced: at}
	}
	found := spot{shown: location.Place(), synced: "s3://" + filepath.Join(location.Bucket, location.Prefix)}
	if location.Endpoint != "" {
		found.server = " --endpoint-url " + location.Endpoint
	}
	return found
}

// Boundless is as much as no store takes: S3 has no disk of which artifacts may take a part.
const Boundless = quantity.Bytes(1) << 62
