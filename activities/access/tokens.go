package access

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/documents"
)

// Issued is a token that was made for somebody, without the token.
type Issued struct {
	// Name says for whom, or for what; it is that by which changes are told and by which it is revoked.
	Name string `json:"name"`
	// Role is "viewer", "operator" or "admin".
	Role string `json:"role"`
	// Made is when it was made.
	Made time.Time `json:"made"`
	// SHA256 is the digest of the token, in hexadecimal digits. A token is random, so nothing else is mixed in.
	SHA256 string `json:"sha256"`
	// Team is whose it is: a viewer or operator of a team sees what is not private to another, and changes what is the
	// team's own. Empty is the default team.
	Team string `json:"team,omitempty"`
	// By is who has made it: what an admin has made counts after they have left. Its zero value is of a token that an
	// earlier version has made.
	By Maker `json:"by,omitzero"`
}

// Maker is who has made something.
type Maker struct {
	// Name is that of a token or of a person, or "owner".
	Name string `json:"name"`
	// Issuer and Subject are of who has signed in with an identity provider; else empty.
	Issuer  string `json:"issuer,omitempty"`
	Subject string `json:"subject,omitempty"`
}

// makerOf is who makes the request that ctx is of.
func makerOf(ctx context.Context) Maker {
	who := WhoAsks(ctx)
	return Maker{Name: NameOfCaller(ctx), Issuer: who.Issuer, Subject: who.Subject}
}

// roles are the callers that tokens can be made for, by the names of their roles.
var roles = map[string]Caller{"viewer": Viewer, "operator": Operator, "admin": Owner}

// Roles are the names of the roles, the least first.
func Roles() []string { return []string{"viewer", "operator", "admin"} }

// Tokens are those that were made for others. All servers of a stack have the same, and one that is revoked at one
// counts at none from then on. Its methods may be called concurrently. Use OpenTokens.
type Tokens struct {
	issued *documents.Set[Issued] // by name

	mu       sync.Mutex
	bySHA256 map[string]string // names; guarded by mu
	lives    map[string]life   // by digest, of those that were shown; guarded by mu
}

// life is one that lasts until a token is revoked.
type life struct {
	context.Context //nolint:containedctx // requests end with it

	end context.CancelFunc
}

// OpenTokens returns the tokens that are among the documents; there may be none.
func OpenTokens(shared *documents.Documents) *Tokens {
	t := &Tokens{bySHA256: map[string]string{}, lives: map[string]life{}}
	t.issued = documents.Of(shared, "token", t.changed)
	return t
}

// changed takes in that a token was made or revoked, by this server or another.
func (t *Tokens) changed(_ string, before, now *Issued) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if before != nil && (now == nil || now.SHA256 != before.SHA256) {
		delete(t.bySHA256, before.SHA256)
		if shown, was := t.lives[before.SHA256]; was {
			shown.end()
			delete(t.lives, before.SHA256)
		}
	}
	if now != nil {
		t.bySHA256[now.SHA256] = now.Name
	}
}

const (
	// mostTokens is how many there may be.
	mostTokens = 1000
	// tokenPrefix begins each, so that programs which look for secrets find them.
	tokenPrefix = "spillway_"
)

var (
	tokenName = regexp.MustCompile(`^[A-Za-z0-9][-_.@A-Za-z0-9]{0,63}$`)
	teamName  = regexp.MustCompile(`^[-a-z0-9]{1,40}$`)
)

// Errors of Make and Revoke.
var (
	// ErrRole says that there is no such role.
	ErrRole = errors.New("there is no such role")
	// ErrTokenName says that a token cannot have a name, ErrTokenTaken that another has it, ErrNoToken that none has.
	ErrTokenName  = errors.New("a token cannot have that name")
	ErrTokenTaken = errors.New("there is a token of that name already")
	ErrNoToken    = errors.New("there is no token of that name")
	// ErrTeamName says that a team cannot have a name.
	ErrTeamName = errors.New("a team cannot have that name")
	// ErrTokens says that there are as many as there may be.
	ErrTokens = errors.New("there are as many tokens as there may be: revoke one")
)

// defaultTeam is what people call the team whose name is empty.
const defaultTeam = "default"

// CheckTeam says why a team cannot have a name; nil where it can. Empty is that of the default team.
func CheckTeam(name string) error {
	switch {
	case name == defaultTeam:
		return fmt.Errorf("%w: leave it out for the team %q", ErrTeamName, name)
	case name == "" || teamName.MatchString(name):
		return nil
	}
	return fmt.Errorf("%w: %.80q has other characters than lower-case letters, digits and dashes, or more than 40",
		ErrTeamName, name)
}

// Make makes a token for somebody of a team with a role, and returns it; nobody can read it again. It is noted who
// makes the request that ctx is of.
func (t *Tokens) Make(ctx context.Context, name, role, team string, now time.Time) (token string, err error) {
	if err := CheckTeam(team); err != nil {
		return "", err
	}
	if _, known := roles[role]; !known {
		return "", fmt.Errorf("%w: %.40q; choose among %s", ErrRole, role, strings.Join(Roles(), ", "))
	}
	if !tokenName.MatchString(name) {
		return "", fmt.Errorf("%w: %.80q has other characters than letters, digits, dashes, dots, underscores and @, or "+
			"more than 64", ErrTokenName, name)
	}
	var random [sha256.Size]byte
	_, _ = rand.Read(random[:]) // it never fails
	token = tokenPrefix + base64.RawURLEncoding.EncodeToString(random[:])
	made := Issued{
		Name: name, Role: role, Team: team, Made: now.UTC().Truncate(time.Second), SHA256: digestOfToken(token),
		By: makerOf(ctx),
	}
	err = t.issued.Change(ctx, name, func(_ Issued, known bool) (Issued, error) {
		switch {
		case known:
			return Issued{}, fmt.Errorf("%w: %q; revoke it first", ErrTokenTaken, name)
		case t.issued.Len() >= mostTokens:
			return Issued{}, ErrTokens
		}
		return made, nil
	})
	if err != nil {
		return "", err
	}
	return token, nil
}

// Revoke has the token of that name count no more. Requests that were made with it end.
func (t *Tokens) Revoke(ctx context.Context, name string) error {
	return t.issued.Change(ctx, name, func(_ Issued, known bool) (Issued, error) {
		if !known {
			return Issued{}, fmt.Errorf("%w: %.80q", ErrNoToken, name)
		}
		return Issued{}, documents.Remove
	})
}

// Issued returns those that there are, in the order in which they were made.
func (t *Tokens) Issued() []Issued {
	return slices.SortedFunc(maps.Values(t.issued.All()), func(a, b Issued) int {
		return cmp.Or(a.Made.Compare(b.Made), strings.Compare(a.Name, b.Name))
	})
}

func digestOfToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// of says for whom a token was made, and for how long it counts.
func (t *Tokens) of(token string) (who asking, known bool) {
	if t == nil || !strings.HasPrefix(token, tokenPrefix) {
		return nobody, false
	}
	return t.ofDigest(digestOfToken(token))
}

// Digest returns the digest of a token that was made for somebody and counts, for Session.Of.
func (t *Tokens) Digest(token string) (digest string, counts bool) {
	who, counts := t.of(token)
	return who.credential, counts
}

// ofDigest is of for the token of a digest.
func (t *Tokens) ofDigest(digest string) (who asking, known bool) {
	if t == nil {
		return nobody, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	name := t.bySHA256[digest] // the digest is no secret that the time could tell
	issued, known := t.issued.Get(name)
	if !known || issued.SHA256 != digest {
		return nobody, false
	}
	return asking{
		caller: roles[issued.Role], name: issued.Name, team: issued.Team, role: issued.Role, credential: digest,
		counts: t.lifeOf(digest),
	}, true
}

// lifeOf is that of the token of a digest. The caller holds mu.
func (t *Tokens) lifeOf(digest string) context.Context {
	shown, was := t.lives[digest]
	if !was {
		shown.Context, shown.end = context.WithCancel(context.Background())
		t.lives[digest] = shown
	}
	return shown.Context
}
