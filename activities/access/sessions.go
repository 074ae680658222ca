package access

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/documents"
)

// Session is for how long, and as whom, a browser or a command line is let in: somebody who has signed in with the
// identity provider, or who has shown a token that was made for somebody. All servers of a stack know it, and what is
// ended at one counts at none.
type Session struct {
	// ID is the digest of what is shown for it, in hexadecimal digits. It is no secret.
	ID string `json:"-"`
	// Issuer and Subject say who it is in words that never change (OpenID Connect Core, section 5.7); both are empty of a
	// session that is of a token.
	Issuer  string `json:"issuer,omitempty"`
	Subject string `json:"subject,omitempty"`
	// Name is what people call who it is; Role is "viewer", "operator" or "admin", Team empty for the default team. All
	// three are empty of a session that is of a token or of another session: it has those of that.
	Name string `json:"name,omitempty"`
	Role string `json:"role,omitempty"`
	Team string `json:"team,omitempty"`
	// Of is the digest of the token, or the ID of the session, that it was made from and ends with; empty for none.
	Of string `json:"of,omitempty"`
	// Way says what for: WayPage or WayCommandLine. From is the address that it was made for.
	Way  string `json:"way"`
	From string `json:"from,omitempty"`
	// Made is when it was made, and Until when it ends at the latest.
	Made  time.Time `json:"made"`
	Until time.Time `json:"until"`
	// Fresh is until when the identity provider stands for it, and Refresh what it is asked with to go on. Refresh is a
	// secret, which nobody is shown; empty where the provider has given none.
	Fresh   time.Time `json:"fresh,omitzero"`
	Refresh string    `json:"refresh,omitempty"`
}

// What sessions are for.
const (
	WayPage        = "page"
	WayCommandLine = "command line"
)

const (
	// sessionPrefix begins what is shown for a session.
	sessionPrefix = tokenPrefix + "session_"
	// mostSessions is how many there may be, and mostOfOne how many of one person in one way: the oldest ends then.
	mostSessions = 10_000
	mostOfOne    = 20
	// settling is how long a session that another server has just made may not be known here, and settleFor how long it is
	// waited for.
	settling  = 10 * time.Second
	settleFor = 2 * time.Second
)

// Errors of sessions.
var (
	// ErrNoSession says that there is no such session, ErrSessions that there are as many as there may be.
	ErrNoSession = errors.New("there is no session")
	ErrSessions  = errors.New("there are as many sessions as there may be: end some")
)

// Sessions are those of a stack. Its methods may be called concurrently. Use OpenSessions.
type Sessions struct {
	// Displaced is told of each session that ends because who it is of has made too many; nil is told nothing. It is set
	// before the first request.
	Displaced func(ctx context.Context, session Session)

	keys     *Keys
	tokens   *Tokens
	sessions *documents.Set[Session]  // by ID
	requests *documents.Set[proposed] // by the digest of the code that people compare

	mu    sync.Mutex
	lives map[string]life // by ID, of those that were shown; guarded by mu
	news  chan struct{}   // closed at the next change; guarded by mu
}

// OpenSessions returns the sessions that are among the documents; there may be none.
func OpenSessions(shared *documents.Documents, keys *Keys, tokens *Tokens) *Sessions {
	s := &Sessions{keys: keys, tokens: tokens, lives: map[string]life{}, news: make(chan struct{})}
	s.requests = documents.Of[proposed](shared, "sign-in", nil)
	s.sessions = documents.Of(shared, "session", s.changed)
	return s
}

// changed takes in that a session was made, changed or ended, by this server or another.
func (s *Sessions) changed(id string, before, now *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.news)
	s.news = make(chan struct{})
	same := before != nil && now != nil && before.letsInAs(*now)
	if shown, was := s.lives[id]; was && !same { // who has another role asks again with that
		shown.end()
		delete(s.lives, id)
	}
}

// letsInAs says whether a session lets in as another does, and for as long.
func (s Session) letsInAs(other Session) bool {
	return s.Name == other.Name && s.Role == other.Role && s.Team == other.Team && s.Until.Equal(other.Until)
}

// Make makes a session that begins now, and returns what is shown for it; nobody can read that again. It sets ID and
// Made. Where one person has many in one way, the oldest of them end: programs that exchange ID tokens end no page of
// theirs.
func (s *Sessions) Make(ctx context.Context, session Session, now time.Time) (token string, err error) {
	token = s.keys.newSessionToken(now)
	if err := s.makeAs(ctx, token, session, now); err != nil {
		return "", err
	}
	return token, nil
}

// makeAs does as Make with what is to be shown for the session; one that there is stays as it is.
func (s *Sessions) makeAs(ctx context.Context, token string, session Session, now time.Time) error {
	if _, known := roles[session.Role]; !known && session.Of == "" {
		return fmt.Errorf("%w: %.40q; choose among %s", ErrRole, session.Role, strings.Join(Roles(), ", "))
	}
	id := digestOfToken(token)
	if _, known := s.sessions.Get(id); known {
		return nil
	}
	if err := s.makeRoom(ctx, session, now); err != nil {
		return err
	}
	session.Made = now.UTC().Truncate(time.Second)
	return s.sessions.Change(ctx, id, func(there Session, known bool) (Session, error) {
		if known {
			return there, nil
		}
		return session, nil
	})
}

// makeRoom ends what has had its time, and the oldest of who has as many as one may have.
func (s *Sessions) makeRoom(ctx context.Context, wanted Session, now time.Time) error {
	if s.sessions.Len() >= mostSessions {
		if err := s.Prune(ctx, now); err != nil {
			return err
		}
	}
	if s.sessions.Len() >= mostSessions {
		return ErrSessions
	}
	own := slices.DeleteFunc(s.All(), func(one Session) bool {
		return one.Issuer != wanted.Issuer || one.Subject != wanted.Subject || one.Of != wanted.Of || one.Way != wanted.Way
	})
	for len(own) >= mostOfOne {
		if err := s.End(ctx, own[0].ID); err != nil && !errors.Is(err, ErrNoSession) {
			return err
		}
		if s.Displaced != nil {
			s.Displaced(ctx, own[0])
		}
		own = own[1:]
	}
	return nil
}

// All returns those that there are, in the order in which they were made, some of which may have had their time.
func (s *Sessions) All() []Session {
	var all []Session
	for id, session := range s.sessions.All() {
		session.ID = id
		all = append(all, session)
	}
	slices.SortFunc(all, func(a, b Session) int {
		return cmp.Or(a.Made.Compare(b.Made), strings.Compare(a.ID, b.ID))
	})
	return all
}

// Standing are those of All that let somebody in now, each with the name, role and team that it lets in as.
func (s *Sessions) Standing(now time.Time) (standing []Session) {
	for _, session := range s.All() {
		who, stands := s.who(session, now)
		if !stands {
			continue
		}
		session.Name, session.Role, session.Team, session.Until = who.name, who.role, who.team, who.until
		session.Issuer, session.Subject = who.issuer, who.subject
		standing = append(standing, session)
	}
	return standing
}

// End ends a session. Requests that were made with it end, too.
func (s *Sessions) End(ctx context.Context, id string) error {
	return s.Change(ctx, id, func(Session) (Session, error) { return Session{}, documents.Remove })
}

// EndOf ends all sessions of who has this name or subject, and those that were to be given to command lines, and says
// how many those were; ErrNoSession where there are none.
func (s *Sessions) EndOf(ctx context.Context, who string) (ended int, err error) {
	if who == "" {
		return 0, fmt.Errorf("%w of nobody", ErrNoSession)
	}
	now := time.Now()
	for name, request := range s.requests.All() { // first: what is collected from here on ends by itself
		if !request.isOf(who) || !now.Before(request.Until) {
			continue
		}
		withdrawn, err := s.withdraw(ctx, name, who)
		if err != nil {
			return ended, err
		}
		ended += withdrawn
	}
	for _, session := range s.Standing(now) {
		if session.Name != who && session.Subject != who {
			continue
		}
		switch err := s.End(ctx, session.ID); {
		case err == nil:
			ended++
		case !errors.Is(err, ErrNoSession):
			return ended, err
		}
	}
	if ended == 0 {
		return 0, fmt.Errorf("%w of %.80q", ErrNoSession, who)
	}
	return ended, nil
}

// Change replaces a session by what next returns, which may be called several times; documents.Remove ends it.
func (s *Sessions) Change(ctx context.Context, id string, next func(Session) (Session, error)) error {
	return s.sessions.Change(ctx, id, func(now Session, known bool) (Session, error) {
		if !known {
			return Session{}, fmt.Errorf("%w with the ID %.80q", ErrNoSession, id)
		}
		return next(now)
	})
}

// Prune forgets what has had its time: sessions, those of tokens and sessions that are no more, and requests to be let
// in.
func (s *Sessions) Prune(ctx context.Context, now time.Time) error {
	var failed []error
	for _, session := range s.All() {
		_, stands := s.who(session, now)
		if stands {
			continue
		}
		if err := s.End(ctx, session.ID); err != nil && !errors.Is(err, ErrNoSession) {
			failed = append(failed, err)
		}
	}
	for name, request := range s.requests.All() {
		if now.Before(request.Until) {
			continue
		}
		failed = append(failed, s.requests.Change(ctx, name, func(there proposed, _ bool) (proposed, error) {
			if now.Before(there.Until) {
				return there, nil
			}
			return there, documents.Remove
		}))
	}
	return errors.Join(failed...)
}

// of says whose session a token is shown for. One that another server has made a moment ago is waited for.
func (s *Sessions) of(ctx context.Context, token string, now time.Time) (who asking, known bool) {
	if s == nil {
		return nobody, false
	}
	made, genuine := s.keys.sessionToken(token)
	if !genuine {
		return nobody, false
	}
	session, known := s.await(ctx, digestOfToken(token), now.Sub(made) < settling)
	if !known {
		return nobody, false
	}
	return s.who(session, now)
}

// await returns the session of an ID; where it may be on its way here it waits for a moment.
func (s *Sessions) await(ctx context.Context, id string, onItsWay bool) (session Session, known bool) {
	ctx, cancel := context.WithTimeout(ctx, settleFor)
	defer cancel()
	for {
		s.mu.Lock()
		news := s.news // before it is looked: no change is missed
		s.mu.Unlock()
		session, known = s.sessions.Get(id)
		session.ID = id
		if known || !onItsWay {
			return session, known
		}
		select {
		case <-news:
		case <-ctx.Done():
			return session, false
		}
	}
}

// who says as whom a session lets in, and whether it does.
func (s *Sessions) who(session Session, now time.Time) (who asking, stands bool) {
	if !now.Before(session.Until) {
		return nobody, false
	}
	if session.Of == "" {
		who = asking{
			caller: roles[session.Role], name: session.Name, team: session.Team, issuer: session.Issuer,
			subject: session.Subject, role: session.Role, credential: session.ID,
		}
		if _, known := roles[session.Role]; !known { // of a later version
			return nobody, false
		}
	} else if who, stands = s.ofDigest(session.Of, now); !stands {
		return nobody, false
	}
	if who.until.IsZero() || session.Until.Before(who.until) {
		who.until = session.Until
	}
	who.session = session.ID
	who.counts = s.lifeOf(who.counts, session)
	return who, true
}

// ofDigest says who has shown the token, or session, of a digest.
func (s *Sessions) ofDigest(digest string, now time.Time) (who asking, known bool) {
	if who, known = s.tokens.ofDigest(digest); known {
		return who, true
	}
	session, known := s.sessions.Get(digest)
	if !known || session.Of != "" {
		return nobody, false
	}
	session.ID = digest
	return s.who(session, now)
}

// lifeOf is that of a session: until it ends, or what it is of, which above is the life of, nil for nothing. Of one
// that has ended or changed since it was looked up the life is over: nobody would end another.
func (s *Sessions) lifeOf(above context.Context, session Session) context.Context {
	if above == nil {
		above = context.Background()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now, known := s.sessions.Get(session.ID); !known || !now.letsInAs(session) {
		over, end := context.WithCancel(above)
		end()
		return over
	}
	shown, was := s.lives[session.ID]
	if !was || shown.Err() != nil {
		shown.Context, shown.end = context.WithDeadline(above, session.Until)
		s.lives[session.ID] = shown
		id, ended := session.ID, shown.Context
		context.AfterFunc(ended, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.lives[id].Context == ended {
				delete(s.lives, id)
			}
		})
	}
	return shown.Context
}

const (
	// sessionRandom is how many bytes of a session token nobody guesses, and sessionMAC how many its code has.
	sessionRandom = 24
	sessionMAC    = 16
)

// newSessionToken is what is shown for a session that is made now. It says when that was, so that another server knows
// that it may not have heard of it yet; and nobody can make one up that is looked for.
func (k *Keys) newSessionToken(now time.Time) string {
	var random [sessionRandom]byte
	_, _ = rand.Read(random[:]) // it never fails
	return k.sessionTokenOf(now, random[:])
}

// sessionTokenOf is what is shown for a session that was made at a time, with bytes that nobody guesses.
func (k *Keys) sessionTokenOf(made time.Time, secret []byte) string {
	said := append(binary.BigEndian.AppendUint64(nil, uint64(made.Unix())), secret...)
	return sessionPrefix + base64.RawURLEncoding.EncodeToString(append(said, k.sessionCode(said)...))
}

func (k *Keys) sessionCode(said []byte) []byte {
	mac := hmac.New(sha256.New, k.derive("session token"))
	mac.Write(said)
	return mac.Sum(nil)[:sessionMAC]
}

// sessionToken says when a session token was made, and whether a server of the stack has made it.
func (k *Keys) sessionToken(token string) (made time.Time, genuine bool) {
	text, is := strings.CutPrefix(token, sessionPrefix)
	if !is {
		return made, false
	}
	decoded, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(decoded) != 8+sessionRandom+sessionMAC {
		return made, false
	}
	said, code := decoded[:len(decoded)-sessionMAC], decoded[len(decoded)-sessionMAC:]
	return time.Unix(int64(binary.BigEndian.Uint64(said)), 0), hmac.Equal(code, k.sessionCode(said))
}

// ShowSession gives the browser that w is the answer to what it shows for a session, until that ends. What SetSession
// says of its cookie is true of this one.
func (k *Keys) ShowSession(w http.ResponseWriter, secure bool, token string, until time.Time) {
	http.SetCookie(w, k.cookie(secure, token, max(1, int(time.Until(until).Seconds()))))
}

// ForgetSession has the browser that w is the answer to show no session any more.
func (k *Keys) ForgetSession(w http.ResponseWriter, secure bool) {
	http.SetCookie(w, k.cookie(secure, "", -1))
}

// Who is who makes a request, as it is told to them.
type Who struct {
	// Name is that of a token or of a person; empty is the owner, or nobody.
	Name string
	// Role is "viewer", "operator" or "admin", and empty for nobody; Team is empty for the default team.
	Role, Team string
	// Issuer and Subject are of who has signed in with an identity provider; else empty.
	Issuer, Subject string
	// Until is when the session ends at the latest; zero where none ends.
	Until time.Time
	// Session is the ID of the session; empty where none was shown.
	Session string
	// Credential is what ends all that is made from it when it ends: the digest of a token, or the ID of a session; empty
	// for the owner and for nobody.
	Credential string
}

// WhoAsks returns who makes the request that ctx is of.
func WhoAsks(ctx context.Context) Who {
	asks, known := ctx.Value(callerKey{}).(asking)
	if !known || asks.caller > Viewer {
		return Who{}
	}
	role := asks.role
	if role == "" {
		role = "admin" // of the owner
	}
	return Who{
		Name: asks.name, Role: role, Team: asks.team, Issuer: asks.issuer, Subject: asks.subject, Until: asks.until,
		Session: asks.session, Credential: asks.credential,
	}
}
