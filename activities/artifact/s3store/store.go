package s3store

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
)

const (
	// partSize is how much is sent as one part, and up to which size an artifact is one request, in bytes.
	partSize = 8 << 20
	// mostParts is S3's bound: https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
	mostParts = 10_000
	// partsAtOnce is how many parts of one artifact are sent at a time, and largeAtOnce how many artifacts are sent in
	// parts: together they bound the memory that Puts take.
	partsAtOnce = 3
	largeAtOnce = 4
	// smallAtOnce is how many Puts hold up to a part each in memory at a time.
	smallAtOnce = 8
	// spooledAtOnce is how many Puts have more than a part on the disk at a time, beside those whose source sends less
	// than a part in Options.Patience.
	spooledAtOnce = 2 * largeAtOnce
	// quick is how long a source may take to be read into memory; one that takes longer is spooled.
	quick = time.Second
)

// Options configures a store.
type Options struct {
	// Credentials sign the requests; nil signs none, which a server takes only where everybody may ask.
	Credentials aws.CredentialsProvider
	// Spool is the directory in which an artifact that is larger than a part (8 MiB), or that comes slowly, lies until it
	// is sent, since its key is known only by its last byte. The file has no name: nothing is left of a process that is
	// killed. Empty is the usual directory for temporary files.
	Spool string
	// Patience is for how long a connection may go without a byte in either direction; 0 is 30 s.
	Patience time.Duration
	// Client says whom TLS trusts and by which proxy requests go, as AWS's configuration has it (AWS_CA_BUNDLE); nil has
	// what this machine has. What else it says of connections the store sets itself.
	Client *awshttp.BuildableClient
}

// Store is a store in a bucket. Its methods are safe for concurrent use, also by several processes; only one of them
// may remove artifacts.
type Store struct {
	location Location
	client   *s3.Client
	options  Options
	large    chan struct{} // holds a token for each Put in parts that goes on
	small    chan struct{} // holds one for each that has up to a part in memory
	spooled  chan struct{} // holds one for each that has more than a part on the disk

	// removing is held to look for marks and delete, and shared by who marks in this process: of what is touched here it
	// is known at once whether it stays.
	removing sync.RWMutex

	mu       sync.Mutex
	known    map[string]bool      // guarded by mu: keys about artifacts that List has seen
	mainless map[string]bool      // guarded by mu: digests of which List has seen only what was put again
	taken    map[string]time.Time // guarded by mu: what was discarded, and after when it must not have been put
	doubtful map[string]bool      // guarded by mu: digests whose deletion ended in an error, and may still happen
	refusal  string               // guarded by mu: why nothing is spooled; empty where it is
	behind   time.Duration        // guarded by mu: by how much the clock of S3 is behind that of this machine
}

var _ artifact.Store = (*Store)(nil)

// New returns the store at a location, which has a region. It contacts nobody; see Claim.
func New(l Location, options Options) (*Store, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	if l.Region == "" {
		return nil, fmt.Errorf("the location %s names no region: add region=REGION", l)
	}
	if options.Patience <= 0 {
		options.Patience = usualPatience
	}
	if options.Credentials != nil {
		options.Credentials = named{options.Credentials}
	}
	return &Store{
		location: l, client: newClient(l, options), options: options,
		large: make(chan struct{}, largeAtOnce), small: make(chan struct{}, smallAtOnce),
		spooled: make(chan struct{}, spooledAtOnce),
		taken:   map[string]time.Time{}, doubtful: map[string]bool{},
	}, nil
}

// Location is where the store is.
func (s *Store) Location() Location { return s.location }

// Refuse has every Put refused, from now on, that needs the disk: see Options.Spool. What is small and comes at once is
// stored all the same: it takes no room there.
func (s *Store) Refuse(why string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusal = why
	return nil
}

// room returns why nothing is spooled now; nil when it is.
func (s *Store) room() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refusal == "" {
		return nil
	}
	return fmt.Errorf("%w to spool it until it is sent: %s", activities.ErrNoRoom, s.refusal)
}

// Names below the prefix.
const (
	about     = "about/"
	discarded = "discarded"
	markedBy  = "mark-"
	againBy   = "again-"
	pins      = "pins/"
	owner     = "spillway-owner"
	// fanOut is how many digits of the digest are before the slash, as in a files store.
	fanOut = 2
)

// key is the key of an object below the prefix.
func (s *Store) key(name string) string {
	if s.location.Prefix == "" {
		return name
	}
	return s.location.Prefix + "/" + name
}

// name is what key was made of.
func (s *Store) name(key string) string { return strings.TrimPrefix(key, s.key("")) }

// bytesKey is the key of an artifact.
func (s *Store) bytesKey(digest string) string { return s.key(digest[:fanOut] + "/" + digest[fanOut:]) }

// uploader sends size bytes in parts.
func (s *Store) uploader(client transfermanager.S3APIClient, size int64) *transfermanager.Client {
	part := max(partSize, (size+mostParts-1)/mostParts)
	return transfermanager.New(client, func(o *transfermanager.Options) {
		o.PartSizeBytes, o.MultipartUploadThreshold, o.Concurrency = part, part, partsAtOnce
		o.ChecksumAlgorithm = types.ChecksumAlgorithmSha256
		o.FailTimeout = s.options.Patience // the parts of one that is cancelled are removed all the same
	})
}

// hold takes a token of a bound, and returns what gives it back.
func hold(ctx context.Context, bound chan struct{}) (release func(), err error) {
	select {
	case bound <- struct{}{}:
		return func() { <-bound }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// token is one of a bound that is taken from who holds it after a while, so that nobody waits for a slow source.
type token struct {
	bound    chan struct{}
	patience time.Duration
	release  func()
	timer    *time.Timer
	lost     atomic.Bool
}

// lend takes a token that is lost after patience; renew begins that time anew.
func lend(ctx context.Context, bound chan struct{}, patience time.Duration) (*token, error) {
	release, err := hold(ctx, bound)
	if err != nil {
		return nil, err
	}
	once := sync.OnceFunc(release)
	t := &token{bound: bound, patience: patience, release: once}
	t.timer = time.AfterFunc(patience, func() {
		t.lost.Store(true)
		once() // not t.release, which keep may be replacing
	})
	return t, nil
}

// renew begins the time anew; it changes nothing about one that is lost.
func (t *token) renew() { t.timer.Reset(t.patience) }

// keep makes it one that is not lost, and takes another one where it was.
func (t *token) keep(ctx context.Context) error {
	if t.timer.Stop() {
		return nil
	}
	release, err := hold(ctx, t.bound)
	if err != nil {
		return err
	}
	t.release = sync.OnceFunc(release)
	return nil
}

// end gives it back.
func (t *token) end() {
	t.timer.Stop()
	t.release()
}
