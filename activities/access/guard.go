package access

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Caller is who asks, by the credential that came with the request.
type Caller int

// Callers.
const (
	Owner   Caller = iota // Owner has shown the owner's token, or a session.
	Scraper               // Scraper has shown the token of Prometheus.
	Anyone                // Anyone has shown nothing, or had nothing to show.
)

// Refusal is why a request is not answered.
type Refusal struct { //nolint:errname // a refusal is what it is called everywhere
	// Status is the HTTP status, 400 to 599.
	Status int
	// Message says what was wrong, and Hint what to do; the hint may be empty.
	Message, Hint string
}

// Error implements error.
func (r *Refusal) Error() string { return r.Message }

// Advice returns the hint.
func (r *Refusal) Advice() string { return r.Hint }

// Guard stands before a port of the loopback interface. It refuses what pages of other origins and names that resolve
// here from elsewhere (DNS rebinding) send, who shows no credential, and bodies that are too large or stop coming. The
// zero value refuses everybody.
type Guard struct {
	// Keys tell who is who; nil knows nobody, so that only what Needs leaves to Anyone is answered.
	Keys *Keys
	// Rule is what is asked of a request; nil is the zero Rule of every one.
	Rule func(*http.Request) Rule
	// Patience is how long the next bytes of a body may take to come; 0 is 30 s.
	Patience time.Duration
	// Refuse answers a request that is refused; nil writes the message and the hint as text.
	Refuse func(http.ResponseWriter, *http.Request, *Refusal)
}

// Rule is what a Guard asks of a request. The zero value is for the owner alone and asks nothing else.
type Rule struct {
	// Needs is who may make it: Anyone, Scraper and the owner, or the owner alone.
	Needs Caller
	// Content is the content type that it must have; empty is any.
	Content string
	// MaxBody bounds its body, in bytes; 0 is no bound.
	MaxBody int64
}

// Wrap returns a handler that answers what the guard admits as next does. It must be served by an http.Server, which
// says at which port a request came in. Next is not shown the credential; CallerOf tells it who asks.
func (g *Guard) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("X-Content-Type-Options", "nosniff") // names, errors and logs may be anybody's HTML
		header.Set("Referrer-Policy", "no-referrer")
		watchBody(w, r, cmp.Or(g.Patience, bodyPatience))
		var rule Rule
		if g.Rule != nil {
			rule = g.Rule(r)
		}
		caller, refusal := g.admit(w, r, rule)
		if refusal != nil {
			if r.ContentLength != 0 {
				header.Set("Connection", "close") // what is left of its body is not waited for
			}
			if refusal.Status == http.StatusUnauthorized {
				header.Set("WWW-Authenticate", `Bearer realm="spillway"`)
			}
			g.refuse(w, r, refusal)
			return
		}
		if g.Keys != nil {
			r.Header.Del("Authorization")
		}
		if rule.MaxBody > 0 {
			r.Body = http.MaxBytesReader(w, r.Body, rule.MaxBody)
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, caller)))
	})
}

func (g *Guard) refuse(w http.ResponseWriter, r *http.Request, refusal *Refusal) {
	if g.Refuse != nil {
		g.Refuse(w, r, refusal)
		return
	}
	text := refusal.Message
	if refusal.Hint != "" {
		text += "; " + refusal.Hint
	}
	http.Error(w, text, refusal.Status)
}

// callerKey is that of the Caller in the context of a request.
type callerKey struct{}

// CallerOf returns who makes the request that ctx is of; Anyone where no Guard has looked.
func CallerOf(ctx context.Context) Caller {
	if caller, known := ctx.Value(callerKey{}).(Caller); known {
		return caller
	}
	return Anyone
}

// admit says who asks, or why the request is refused.
func (g *Guard) admit(w http.ResponseWriter, r *http.Request, rule Rule) (Caller, *Refusal) {
	if refusal := admitHost(r); refusal != nil {
		return Anyone, refusal
	}
	if refusal := admitOrigin(r); refusal != nil {
		return Anyone, refusal
	}
	caller, refusal := g.identify(w, r)
	switch {
	case caller <= rule.Needs:
	case refusal != nil:
		return Anyone, refusal
	default:
		return Anyone, &Refusal{
			http.StatusForbidden, "the token of Prometheus reads /metrics and nothing else",
			"show the token in the file " + TokenFile + " of the state directory",
		}
	}
	if refusal := admitContent(r, rule.Content); refusal != nil {
		return Anyone, refusal
	}
	if rule.MaxBody > 0 && r.ContentLength > rule.MaxBody {
		return Anyone, TooLarge(rule.MaxBody)
	}
	return caller, nil
}

// admitHost refuses a request that was made to another name or port than those under which its listener is reached.
func admitHost(r *http.Request) *Refusal {
	local, known := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !known {
		return &Refusal{Status: http.StatusForbidden, Message: "the request came through no port of this machine"}
	}
	name, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		name, port = strings.TrimSuffix(strings.TrimPrefix(r.Host, "["), "]"), "80"
	}
	if port == strconv.Itoa(local.Port) && isLoopback(name) {
		return nil
	}
	return &Refusal{
		http.StatusForbidden, fmt.Sprintf("this port is for this machine only, and the host %.100q is not its loopback name",
			r.Host),
		fmt.Sprintf("use http://127.0.0.1:%d", local.Port),
	}
}

func isLoopback(name string) bool {
	if strings.EqualFold(name, "localhost") {
		return true
	}
	address, err := netip.ParseAddr(name)
	return err == nil && address.IsLoopback()
}

// admitOrigin refuses what a page of another origin makes a browser send. That its user follows a link from there is no
// such thing.
func admitOrigin(r *http.Request) *Refusal {
	if origin := r.Header.Get("Origin"); origin != "" && origin != "http://"+r.Host {
		return &Refusal{Status: http.StatusForbidden, Message: fmt.Sprintf("pages of %.100q may not ask here", origin)}
	}
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "", "same-origin", "none": // no browser, our own page, or what its user has typed
		return nil
	default:
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		if reads && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" {
			return nil
		}
		return &Refusal{
			Status:  http.StatusForbidden,
			Message: fmt.Sprintf("pages of another site may not ask here (Sec-Fetch-Site: %.100q)", site),
		}
	}
}

// identify says who asks; where that is Anyone, the refusal is for who must be more.
func (g *Guard) identify(w http.ResponseWriter, r *http.Request) (Caller, *Refusal) {
	const advice = "in a browser, open the link that `spillway open` prints; elsewhere send the header \"Authorization: " +
		"Bearer TOKEN\" with the token " +
		"in the file " + TokenFile + " of the state directory"
	if g.Keys == nil {
		return Anyone, &Refusal{http.StatusUnauthorized, "nobody may ask here", ""}
	}
	shown, given := Bearer(r.Header.Get("Authorization"))
	switch {
	case given && g.Keys.IsToken(shown):
		return Owner, nil
	case given && g.Keys.IsMetricsToken(shown):
		return Scraper, nil
	case given:
		return Anyone, &Refusal{
			http.StatusUnauthorized, "the credential is not one of this engine's state directory",
			"show the token in the file " + TokenFile + " of that directory",
		}
	case g.Keys.hasSession(w, r, time.Now()):
		return Owner, nil
	default:
		return Anyone, &Refusal{http.StatusUnauthorized, "no credential was shown", advice}
	}
}

// Bearer returns the token in the value of an Authorization header (RFC 6750), or in gRPC's metadata. Given is true for
// every kind of authorization, because it means to be one.
func Bearer(authorization string) (token string, given bool) {
	if kind, token, _ := strings.Cut(authorization, " "); strings.EqualFold(kind, "Bearer") {
		return strings.TrimSpace(token), true
	}
	return "", authorization != ""
}

func admitContent(r *http.Request, wanted string) *Refusal {
	given := r.Header.Get("Content-Type")
	if kind, _, err := mime.ParseMediaType(given); wanted == "" || err == nil && kind == wanted {
		return nil
	}
	return &Refusal{
		http.StatusUnsupportedMediaType, fmt.Sprintf("the content type %.100q is not %s", given, wanted),
		"send the header Content-Type: " + wanted,
	}
}

// Limits of what a client may hold open.
const (
	headerPatience = 10 * time.Second
	idlePatience   = 2 * time.Minute
	maxHeader      = 64 << 10 // bytes: browsers send the cookies of every port of the host
)

// NewServer returns a server of handler that gives up connections on which no header comes for long, or none at all. It
// logs what it says of broken connections at debug level. Answers may take any time.
func NewServer(handler http.Handler, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: headerPatience, IdleTimeout: idlePatience, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}
