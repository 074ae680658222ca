package host

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/workers/slot"
)

// What hosts that are elsewhere ask the engine for. Each shows its token; who may ask is for whoever serves this.
const (
	declaredPath   = join.AskPrefix + "declared"
	resultsPath    = join.AskPrefix + "results"
	supersededPath = join.AskPrefix + "superseded"
	attemptsPath   = join.AskPrefix + "attempts"
	artifactsPath  = join.AskPrefix + "artifacts"
)

// MaxAsked bounds the body of what a host asks, but for artifacts: a result that is not an artifact itself takes 2 MiB.
const MaxAsked = 8 << 20

const (
	// platformHeader is the platform of a build, in an answer.
	platformHeader = "Spillway-Platform"
	octets         = "application/octet-stream"
)

// Serving is what the engine answers hosts with. All fields are required.
type Serving struct {
	// Declared says whether a host may run a command.
	Declared slot.Declared
	// Results keeps results; the engine signs them.
	Results slot.Keeper
	// Superseded is told of checkpoints that are of no use any more; it does not block.
	Superseded func(older []activities.Ref, made time.Time)
	// InHand is told which attempts a host has in hand, each with its token as it was given to the host.
	InHand func(host, instance string, taken []slot.Taken)
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
		if err := s.Results.Keep(r.Context(), kept); err != nil {
			s.fail(w, r, err)
			return
		}
		s.write(w, r, struct{}{})
	})
	mux.HandleFunc("POST "+supersededPath, func(w http.ResponseWriter, r *http.Request) {
		var told superseded
		if !decode(w, r, &told) {
			return
		}
		s.Superseded(told.Older, told.Made)
		s.write(w, r, struct{}{})
	})
	mux.HandleFunc("POST "+attemptsPath, func(w http.ResponseWriter, r *http.Request) {
		var told inHand
		if !decode(w, r, &told) {
			return
		}
		if of := access.HostOfCaller(r.Context()); of != "" && of != told.Host {
			http.Error(w, fmt.Sprintf("host %s tells of itself, and not of %.80q", of, told.Host), http.StatusForbidden)
			return
		}
		s.InHand(told.Host, told.Instance, told.Attempts)
		s.write(w, r, struct{}{})
	})
	mux.HandleFunc("GET "+join.BuildPrefix+"{build}", s.build)
	mux.Handle(artifactsPath+"/", http.StripPrefix(artifactsPath, s.Artifacts))
	return mux
}

// build answers with the program of a build, where it is one for the platform that is asked for. A host that asks for
// none takes any.
func (s Serving) build(w http.ResponseWriter, r *http.Request) {
	app, digest, _ := strings.Cut(r.PathValue("build"), "@")
	path, err := s.Builds.Path(r.Context(), app, digest)
	if errors.Is(err, build.ErrUnknownBuild) {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	platform := platformOf(path)
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

// platformOf is what a program was built for, as "linux/amd64"; what is none of Go's is taken for this machine's.
func platformOf(path string) string {
	system, architecture := runtime.GOOS, runtime.GOARCH
	if info, err := buildinfo.ReadFile(path); err == nil {
		for _, setting := range info.Settings {
			switch setting.Key {
			case "GOOS":
				system = setting.Value
			case "GOARCH":
				architecture = setting.Value
			}
		}
	}
	return system + "/" + architecture
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
	logger *slog.Logger
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

// Keep has the engine keep a result.
func (a *asker) Keep(ctx context.Context, kept wire.Kept) error {
	return a.post(ctx, resultsPath, kept, nil)
}

// Superseded tells of checkpoints that are of no use any more. It does not wait: of those that are not told of the
// engine gives the space back when their run's is due.
func (a *asker) Superseded(older []activities.Ref, made time.Time) {
	go func() {
		if err := a.post(a.life, supersededPath, superseded{older, made}, nil); err != nil {
			a.logger.DebugContext(a.life, "superseded checkpoints are not told of", "error", err)
		}
	}()
}

// inHand tells which attempts this host has in hand.
func (a *asker) inHand(ctx context.Context, instance string, taken []slot.Taken) error {
	return a.post(ctx, attemptsPath, inHand{a.host, instance, taken}, nil)
}

func (a *asker) post(ctx context.Context, path string, question, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	response, err := a.send(ctx, http.MethodPost, path, strings.NewReader(string(body)))
	if err != nil {
		return err
	}
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
func (a *asker) send(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := a.client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode < http.StatusMultipleChoices {
		return response, nil
	}
	said, err := io.ReadAll(io.LimitReader(response.Body, mostSaid))
	return nil, errors.Join(&refusedError{
		status: response.StatusCode, platform: response.Header.Get(platformHeader), said: strings.TrimSpace(string(said)),
	}, err, response.Body.Close())
}
