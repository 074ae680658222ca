package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// TokensFile holds the digests of the tokens that were made for others than the owner.
const TokensFile = "keys/tokens.json"

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
}

// roles are the callers that tokens can be made for, by the names of their roles.
var roles = map[string]Caller{"viewer": Viewer, "operator": Operator, "admin": Owner}

// Roles are the names of the roles, the least first.
func Roles() []string { return []string{"viewer", "operator", "admin"} }

// Tokens are those that were made for others. Its methods may be called concurrently. Use OpenTokens.
type Tokens struct {
	dir string

	mu     sync.Mutex
	issued []Issued        // guarded by mu
	lives  map[string]life // by name, of those that were shown; guarded by mu
}

// life is one that lasts until a token is revoked.
type life struct {
	context.Context //nolint:containedctx // requests end with it

	end context.CancelFunc
}

// OpenTokens reads the tokens of the state directory dir, which Open has made; there may be none.
func OpenTokens(dir string) (*Tokens, error) {
	root, err := openOwn(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // it was only read
	t := &Tokens{dir: dir}
	held, err := readOwnUpTo(root, dir, TokensFile, mostTokensBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err == nil && json.Unmarshal(held, &t.issued) != nil {
		err = &Error{
			filepath.Join(dir, TokensFile), "cannot be read",
			"put it back from a copy, or remove it: tokens that were made for others do not count any more then",
		}
	}
	return t, err
}

const (
	// mostTokens is how many there may be, and mostTokensBytes what they take.
	mostTokens      = 1000
	mostTokensBytes = 1 << 20
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

// Make makes a token for somebody of a team with a role, and returns it; nobody can read it again.
func (t *Tokens) Make(name, role, team string, now time.Time) (token string, err error) {
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
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case slices.ContainsFunc(t.issued, func(i Issued) bool { return i.Name == name }):
		return "", fmt.Errorf("%w: %q; revoke it first", ErrTokenTaken, name)
	case len(t.issued) >= mostTokens:
		return "", ErrTokens
	}
	var random [sha256.Size]byte
	_, _ = rand.Read(random[:]) // it never fails
	token = tokenPrefix + base64.RawURLEncoding.EncodeToString(random[:])
	sum := sha256.Sum256([]byte(token))
	next := append(slices.Clone(t.issued), Issued{
		Name: name, Role: role, Team: team, Made: now.UTC().Truncate(time.Second), SHA256: hex.EncodeToString(sum[:]),
	})
	return token, t.keep(next)
}

// Revoke has the token of that name count no more. Requests that were made with it end.
func (t *Tokens) Revoke(name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := slices.DeleteFunc(slices.Clone(t.issued), func(i Issued) bool { return i.Name == name })
	if len(next) == len(t.issued) {
		return fmt.Errorf("%w: %.80q", ErrNoToken, name)
	}
	if err := t.keep(next); err != nil {
		return err
	}
	if shown, was := t.lives[name]; was {
		shown.end()
		delete(t.lives, name)
	}
	return nil
}

// keep writes the tokens. The caller holds mu.
func (t *Tokens) keep(next []Issued) error {
	text, err := json.MarshalIndent(next, "", "  ")
	if err == nil {
		err = Write(t.dir, TokensFile, string(text))
	}
	if err == nil {
		t.issued = next
	}
	return err
}

// Issued returns those that there are, in the order in which they were made.
func (t *Tokens) Issued() []Issued {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.issued)
}

// of says for whom a token was made, and for how long it counts.
func (t *Tokens) of(token string) (who asking, known bool) {
	if t == nil || !strings.HasPrefix(token, tokenPrefix) {
		return nobody, false
	}
	sum := sha256.Sum256([]byte(token))
	digest := hex.EncodeToString(sum[:])
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, issued := range t.issued { // the digest is no secret that the time could tell
		if issued.SHA256 == digest {
			return asking{roles[issued.Role], issued.Name, issued.Team, t.lifeOf(issued.Name)}, true
		}
	}
	return nobody, false
}

// lifeOf is that of a token. The caller holds mu.
func (t *Tokens) lifeOf(name string) context.Context {
	shown, was := t.lives[name]
	if !was {
		if t.lives == nil {
			t.lives = map[string]life{}
		}
		shown.Context, shown.end = context.WithCancel(context.Background())
		t.lives[name] = shown
	}
	return shown.Context
}
