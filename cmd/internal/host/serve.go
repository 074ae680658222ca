package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/slot"
)

// What hosts that are elsewhere ask the engine for. Each shows its token; who may ask is for whoever serves this.
const (
	declaredPath   = join.AskPrefix + "declared"
	resultsPath    = join.AskPrefix + "results"
	supersededPath = join.AskPrefix + "superseded"
	secretsPath    = join.AskPrefix + "secrets"
	attemptsPath   = join.AskPrefix + "attempts"
	serversPath    = join.AskPrefix + "servers"
	artifactsPath  = join.AskPrefix + "artifacts"
)

// MaxAsked bounds the body of what a host asks, but for artifacts: a result that is not an artifact itself takes 2 MiB.
const MaxAsked = 8 << 20

const (
	// platformHeader is the platform of a build, in an answer.
	platformHeader = "Spillway-Platform"
	// serversHeader is which servers there are, as Serving.Servers has them, with a comma between: it is on every answer,
	// so that a host which is told anything knows where to go on when this server is gone.
	serversHeader = "Spillway-Servers"
	octets        = "application/octet-stream"
)

// Serving is what the engine answers hosts with. All fields are required.
type Serving struct {
	// Declared says whether a host may run a command.
	Declared slot.Declared
	// Given says of which attempt a proof is that a host shows; nil for a host of a version before proofs, which is
	// taken at its word, and an error where the proof is none of that host.
	Given func(host, proof string) (*wire.Given, error)
	// Payload reads the input of a task that is an artifact.
	Payload func(ctx context.Context, digest string) (json.RawMessage, error)
	// Results keeps results; the engine signs them.
	Results slot.Keeper
	// Secrets returns the secrets of a stage. An error that wraps slot.ErrNoSecret is final.
	Secrets func(ctx context.Context, stage predictor.StageID) (map[string]string, error)
	// Superseded is told of checkpoints that are of no use any more; it does not block.
	Superseded func(older []activities.Ref, made time.Time)
	// InHand is told which attempts a host has in hand, each with its token as it was given to the host: also of attempts
	// that it was not given.
	InHand func(host, instance string, sequence int, taken []slot.Taken)
	// Servers are the servers of the stack, as join.Answer.Servers has them.
	Servers func(ctx context.Context) []string
	// Builds has the programs of stages.
	Builds *build.Store
	// Artifacts answers for artifacts, boards and the parameter server: a relay.Handler.
	Artifacts http.Handler
	Logger    *slog.Logger
}

// verdict is the answer about a command.
type verdict struct {
	// Refused says why it may not be run; empty where it may.
	Refused string `json:"refused,omitempty"`
}

// superseded is what a host tells of checkpoints.
type superseded struct {
	Older []activities.Ref `json:"older"`
	Made  time.Time        `json:"made"`
}

// inHand is what a host has in hand. Host is itself, and is the one whose token is shown, where one is.
type inHand struct {
	Host     string       `json:"host"`
	Instance string       `json:"instance"`
	Attempts []slot.Taken `json:"attempts"`
	// Sequence is that of this word among those of the instance; 0 from a host of a version before, whose order is theirs.
	Sequence int `json:"sequence,omitempty"`
}

// serversAnswer says which servers there are.
type serversAnswer struct {
	Servers []string `json:"servers"`
}

// Handler answers what hosts ask.
func (s Serving) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+declaredPath, func(w http.ResponseWriter, r *http.Request) {
		var order slot.Order
		if !decode(w, r, &order) {
			return
		}
		err := s.Declared(r.Context(), order)
		if err != nil && !errors.Is(err, slot.ErrUndeclared) {
			s.fail(w, r, err)
			return
		}
		var answer verdict
		if err != nil {
			answer.Refused = strings.TrimPrefix(err.Error(), slot.ErrUndeclared.Error()+": ")
		}
		s.write(w, r, answer)
	})
	mux.HandleFunc("POST "+resultsPath, func(w http.ResponseWriter, r *http.Request) {
		var kept wire.Kept
		if !decode(w, r, &kept) {
			return
		}
		if err := s.mayKeep(r, kept); err != nil {
			s.refuse(w, r, err)
			return
		}
		if err := s.Results.Keep(r.Context(), kept); err != nil {
			s.fail(w, r, err)
			return
		}
		s.write(w, r, struct{}{})
	})
	mux.HandleFunc("POST "+supersededPath, s.superseded)
	mux.HandleFunc("POST "+attemptsPath, func(w http.ResponseWriter, r *http.Request) {
		var told inHand
		if !decode(w, r, &told) {
			return
		}
		if of := access.HostOfCaller(r.Context()); of != "" && of != told.Host {
			http.Error(w, fmt.Sprintf("host %s tells of itself, and not of %.80q", of, told.Host), http.StatusForbidden)
			return
		}
		s.InHand(told.Host, told.Instance, told.Sequence, told.Attempts)
		s.write(w, r, struct{}{})
	})
	mux.HandleFunc("GET "+serversPath, func(w http.ResponseWriter, r *http.Request) {
		s.write(w, r, serversAnswer{s.Servers(r.Context())})
	})
	mux.HandleFunc("POST "+secretsPath, s.secrets)
	mux.HandleFunc("GET "+join.BuildPrefix+"{build}", s.build)
	mux.Handle(artifactsPath+"/", http.StripPrefix(artifactsPath, s.Artifacts))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(serversHeader, strings.Join(s.Servers(r.Context()), ","))
		mux.ServeHTTP(w, r)
	})
}

// mostSuperseded is how many artifacts a host may name at once as of no use any more: the parts of some checkpoints.
const mostSuperseded = 10_000

// superseded takes the word of a host that checkpoints of an attempt, which it was given, are of no use any more.
func (s Serving) superseded(w http.ResponseWriter, r *http.Request) {
	var told superseded
	if !decode(w, r, &told) {
		return
	}
	if len(told.Older) > mostSuperseded {
		http.Error(w, fmt.Sprintf("a host names at most %d artifacts at once", mostSuperseded), http.StatusBadRequest)
		return
	}
	now := time.Now()
	given, err := s.Given(access.HostOfCaller(r.Context()), r.Header.Get(wire.ProofHeader))
	if err == nil && given != nil {
		err = errors.Join(given.Whole(), given.Expired(now))
	}
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	if told.Made.After(now) { // what is put from now on is somebody else's as well
		told.Made = now
	}
	s.Superseded(told.Older, told.Made)
	s.write(w, r, struct{}{})
}

// mayKeep says why a host may not have a result kept: it is of no task that it was given, or of another input. What
// cannot be read now is an unreadError.
func (s Serving) mayKeep(r *http.Request, kept wire.Kept) error {
	given, err := s.Given(access.HostOfCaller(r.Context()), r.Header.Get(wire.ProofHeader))
	if err != nil || given == nil {
		return err
	}
	key := given.Key
	if given.Input != "" {
		input, err := s.Payload(r.Context(), given.Input)
		if err != nil {
			return &unreadError{err}
		}
		key = wire.NewResultKey(given.Stage, given.Command, given.CacheVersion, input)
	}
	return given.CheckKept(kept, key, time.Now())
}

// unreadError says that the engine could not read what it needs to answer.
type unreadError struct{ error }

// refuse says why a host may not have what it asks for.
func (s Serving) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if _, unread := errors.AsType[*unreadError](err); unread {
		s.fail(w, r, err)
		return
	}
	host := access.HostOfCaller(r.Context())
	s.Logger.WarnContext(r.Context(), "a host was refused", "host", host, "path", r.URL.Path, "error", err)
	http.Error(w, fmt.Sprintf("host %s: %v", host, err), http.StatusForbidden)
}

// secretsFor is for how long after it was given an attempt a host may ask for its secrets: it does so when it has room
// for it, and is about to begin.
const secretsFor = 24 * time.Hour

// confided is the answer about secrets.
type confided struct {
	Secrets map[string]string `json:"secrets,omitempty"`
	// Refused says why there are none; empty where there are.
	Refused string `json:"refused,omitempty"`
}

// secrets answers with the secrets of the attempt that a host shows that it was given, and of no other.
func (s Serving) secrets(w http.ResponseWriter, r *http.Request) {
	given, err := s.Given(access.HostOfCaller(r.Context()), r.Header.Get(wire.ProofHeader))
	switch {
	case err != nil:
	case given == nil:
		err = errors.New("it does not show which attempt it was given: upgrade the host, and join again")
	case given.Member: // a host says itself that it takes part, and is asked for no more than room
		err = given.Whole()
	case time.Since(given.At) > secretsFor:
		err = fmt.Errorf("the attempt was given to the host more than %s ago", secretsFor)
	}
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	secrets, err := s.Secrets(r.Context(), given.Stage)
	switch {
	case errors.Is(err, slot.ErrNoSecret):
		s.write(w, r, confided{Refused: strings.TrimPrefix(err.Error(), slot.ErrNoSecret.Error()+": ")})
	case err != nil:
		s.fail(w, r, err)
	default:
		w.Header().Set("Cache-Control", "no-store")
		s.write(w, r, confided{Secrets: secrets})
	}
}

// build answers with the program of a build, where it is one for the platform that is asked for. A host that asks for
// none takes any.
func (s Serving) build(w http.ResponseWriter, r *http.Request) {
	app, digest, _ := strings.Cut(r.PathValue("build"), "@")
	path, err := s.Builds.Path(r.Context(), app, digest)
	if other, is := errors.AsType[*build.PlatformError](err); is { // it is not even fetched here
		w.Header().Set(platformHeader, other.Of)
		http.Error(w, "the build is for "+other.Of, http.StatusConflict)
		return
	}
	if errors.Is(err, build.ErrUnknownBuild) {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	platform := build.PlatformOf(path)
	w.Header().Set(platformHeader, platform)
	if wanted := r.URL.Query().Get("platform"); wanted != "" && wanted != platform {
		http.Error(w, "the build is for "+platform, http.StatusConflict)
		return
	}
	file, err := os.Open(path)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer file.Close() //nolint:errcheck // it was only read
	w.Header().Set("Content-Type", octets)
	http.ServeContent(w, r, "", time.Time{}, file)
}

func decode(w http.ResponseWriter, r *http.Request, target any) bool {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, MaxAsked)).Decode(target); err != nil {
		http.Error(w, fmt.Sprintf("what the host sent does not decode: %v", err), http.StatusBadRequest)
		return false
	}
	return true
}

func (s Serving) write(w http.ResponseWriter, r *http.Request, answer any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		s.Logger.DebugContext(r.Context(), "a host was not answered", "path", r.URL.Path, "error", err)
	}
}

// fail says that the engine could not answer: the host asks again.
func (s Serving) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		s.Logger.WarnContext(r.Context(), "a host was not answered", "path", r.URL.Path, "error", err)
	}
	http.Error(w, err.Error(), http.StatusBadGateway)
}

// asker asks an engine elsewhere.
type asker struct {
	base   string // its URL, without a final slash
	host   string // this one's name
	client *http.Client
	//nolint:containedctx // what is told without waiting is told as long as the host lives
	life   context.Context
	proofs *slot.Proofs
	logger *slog.Logger
	// there is told with each answer which servers there are; it does not block. Nil tells nobody.
	there func(servers []string)
}

// askWait bounds one question.
const askWait = 10 * time.Second

// Declared asks whether this host may run a command.
func (a *asker) Declared(ctx context.Context, order slot.Order) error {
	var answer verdict
	if err := a.post(ctx, declaredPath, order, &answer); err != nil {
		return fmt.Errorf("ask the server: %w", err)
	}
	if answer.Refused != "" {
		return fmt.Errorf("%w: %s", slot.ErrUndeclared, answer.Refused)
	}
	return nil
}

// Secrets asks for the secrets of an attempt that this host was given.
func (a *asker) Secrets(ctx context.Context, task wire.Task, attempt int) (map[string]string, error) {
	var answer confided
	if err := a.prove(ctx, a.proofs.Of(task.Run, task.ID, attempt), secretsPath, struct{}{}, &answer); err != nil {
		return nil, fmt.Errorf("ask the server for its secrets: %w", err)
	}
	if answer.Refused != "" {
		return nil, fmt.Errorf("%w: %s", slot.ErrNoSecret, answer.Refused)
	}
	return answer.Secrets, nil
}

// Keep has the engine keep a result.
func (a *asker) Keep(ctx context.Context, kept wire.Kept) error {
	return a.prove(ctx, a.proofs.Of(kept.Run, kept.Task, 0), resultsPath, kept, nil)
}

// Superseded tells of checkpoints that are of no use any more. It does not wait: of those that are not told of the
// engine gives the space back when their run's is due.
func (a *asker) Superseded(proof string, older []activities.Ref, made time.Time) {
	go func() {
		if err := a.prove(a.life, proof, supersededPath, superseded{older, made}, nil); err != nil {
			a.logger.DebugContext(a.life, "superseded checkpoints are not told of", "error", err)
		}
	}()
}

// inHand tells which attempts this host has in hand.
func (a *asker) inHand(ctx context.Context, instance string, sequence int, taken []slot.Taken) error {
	return a.post(ctx, attemptsPath, inHand{a.host, instance, taken, sequence}, nil)
}

func (a *asker) post(ctx context.Context, path string, question, answer any) error {
	return a.prove(ctx, "", path, question, answer)
}

// prove is post with what shows that this host was given the attempt that it tells of; empty for none.
func (a *asker) prove(ctx context.Context, proof, path string, question, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	response, err := a.send(ctx, http.MethodPost, path, strings.NewReader(string(body)), proof)
	if err != nil {
		return err
	}
	return decodeAnswer(response, answer)
}

// get asks for what needs no question.
func (a *asker) get(ctx context.Context, path string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	response, err := a.send(ctx, http.MethodGet, path, nil, "")
	if err != nil {
		return err
	}
	return decodeAnswer(response, answer)
}

func decodeAnswer(response *http.Response, answer any) error {
	defer response.Body.Close() //nolint:errcheck // it was only read
	if answer == nil {
		return nil
	}
	return json.NewDecoder(io.LimitReader(response.Body, MaxAsked)).Decode(answer)
}

// refusedError is an answer that says why not.
type refusedError struct {
	status   int
	platform string
	said     string
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("the server answers %d %s: %s", e.status, http.StatusText(e.status), e.said)
}

// mostSaid bounds the text of a refusal.
const mostSaid = 64 << 10

// send asks and returns the answer where it is one of success.
func (a *asker) send(ctx context.Context, method, path string, body io.Reader, proof string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if proof != "" {
		request.Header.Set(wire.ProofHeader, proof)
	}
	response, err := a.client.Do(request)
	if err != nil {
		return nil, err
	}
	if all := response.Header.Get(serversHeader); all != "" && a.there != nil {
		a.there(strings.Split(all, ","))
	}
	if response.StatusCode < http.StatusMultipleChoices {
		return response, nil
	}
	said, err := io.ReadAll(io.LimitReader(response.Body, mostSaid))
	return nil, errors.Join(&refusedError{
		status: response.StatusCode, platform: response.Header.Get(platformHeader), said: strings.TrimSpace(string(said)),
	}, err, response.Body.Close())
}
