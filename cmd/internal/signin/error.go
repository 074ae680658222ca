package signin

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/oauth2"
)

// Errors of a sign-in, each with its one sentence.
var (
	// ErrUnreachable says that the provider does not answer, or answers as none does.
	ErrUnreachable = errors.New("the identity provider cannot be asked")
	// ErrServer says that this server cannot ask the provider: that does not know it, or a file of its own cannot be read.
	ErrServer = errors.New("this server cannot ask the identity provider")
	// ErrRefused says that the provider refuses what it was shown: a code, or a refresh token.
	ErrRefused = errors.New("the identity provider refuses")
	// ErrToken says that what the provider gave, or somebody has shown, is no ID token for this server.
	ErrToken = errors.New("the ID token does not count")
	// ErrNoRole says that somebody has signed in whom no rule gives a role.
	ErrNoRole = errors.New("no rule lets them in")
)

// What errors above may wrap, or be wrapped in.
var (
	// errForAll is ErrUnreachable whoever the provider is asked about, and not for one sign-in.
	errForAll = fmt.Errorf("%w", ErrUnreachable)
	// errGrant says that a code or a refresh token does not count any more, errAgain that who it is of has to be there.
	errGrant = errors.New("what it gave for that has been used, has expired or was taken back")
	errAgain = errors.New("who that is has to sign in again")
	// errElse says that the provider speaks of somebody else than it was asked about.
	errElse = fmt.Errorf("%w: it is somebody else's", ErrToken)
)

// ForAll says whether an error is one that each sign-in and renewal would have now: the provider does not answer, or
// does not know this server.
func ForAll(err error) bool { return errors.Is(err, errForAll) || errors.Is(err, ErrServer) }

// Ends says whether a sign-in does not go on after an error of its renewal: the provider stands for it no longer, or
// for somebody else, or no rule lets in who it is. Any other error says nothing of who has signed in.
func Ends(err error) bool {
	return slices.ContainsFunc([]error{errGrant, errAgain, errElse, ErrNoRole}, func(one error) bool {
		return errors.Is(err, one)
	})
}

// unreachable says in our words what is wrong with the way to the provider.
func (o *Options) unreachable(err error) error {
	var unknown x509.UnknownAuthorityError
	var verify *tls.CertificateVerificationError
	hint := "look whether it runs, and whether this machine reaches it"
	switch text := err.Error(); {
	case errors.As(err, &unknown), errors.As(err, &verify):
		hint = "name with --oidc-ca the file of who has signed its certificate"
	case strings.Contains(text, "did not match the issuer"), strings.Contains(text, "issuer URL provided"):
		hint = "write --oidc-issuer exactly as the provider does, up to the slash at its end"
	case strings.Contains(text, "404"), strings.Contains(text, "unmarshal"), strings.Contains(text, "Content-Type"):
		hint = "--oidc-issuer is what stands before /.well-known/openid-configuration"
	}
	return fmt.Errorf("%w: %s: %w; %s", errForAll, o.Issuer, shortened(err), hint)
}

// unanswered is an error of a question to the provider of which no answer came that can be read.
func unanswered(what string, err error) error {
	kind := ErrUnreachable
	if _, is := errors.AsType[*url.Error](err); is { // of the connection
		kind = errForAll
	}
	return fmt.Errorf("%w: %s: %w", kind, what, shortened(err))
}

// answered says in our words what the answer of the token endpoint was.
func (o *Options) answered(what string, err error) error {
	refused, is := errors.AsType[*oauth2.RetrieveError](err)
	if !is {
		return unanswered(what, err)
	}
	var status int
	if refused.Response != nil {
		status = refused.Response.StatusCode
	}
	switch {
	case busy(status), refused.ErrorCode == "temporarily_unavailable":
		return fmt.Errorf("%w: %s: %s", errForAll, what, said(refused))
	case status >= http.StatusInternalServerError, refused.ErrorCode == "server_error":
		return fmt.Errorf("%w: %s: %s", ErrUnreachable, what, said(refused))
	}
	switch refused.ErrorCode {
	case "invalid_client", "unauthorized_client":
		return o.unknown(said(refused))
	case "invalid_grant":
		return fmt.Errorf("%w to %s: %w (%s)", ErrRefused, what, errGrant, said(refused))
	case "access_denied", "interaction_required", "login_required", "consent_required":
		return fmt.Errorf("%w to %s: %w (%s)", ErrRefused, what, errAgain, said(refused))
	case "":
		switch status {
		case http.StatusUnauthorized:
			return o.unknown(said(refused))
		case http.StatusBadRequest, http.StatusForbidden:
		default: // it is no token endpoint
			return fmt.Errorf("%w: %s: %s", errForAll, what, said(refused))
		}
	}
	return fmt.Errorf("%w to %s: %s", ErrRefused, what, said(refused))
}

// busy says whether a status is that of a server that serves nobody now.
func busy(status int) bool {
	return slices.Contains([]int{
		http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout,
	}, status)
}

// unknown says that the provider does not take this server for one of its clients.
func (o *Options) unknown(said string) error {
	return fmt.Errorf("%w: that does not know the client %q, or not by its secret (%s): compare --oidc-client-id and "+
		"--oidc-client-secret-file with what it has", ErrServer, o.ClientID, said)
}

// said is what the provider has answered, in one line.
func said(refused *oauth2.RetrieveError) string {
	if refused.ErrorCode == "" {
		return shortened(refused).Error()
	}
	text := refused.ErrorCode
	if refused.ErrorDescription != "" {
		text += ": " + refused.ErrorDescription
	}
	return shortened(errors.New(text)).Error()
}

// shortened is an error whose text, which may be a page of the provider, has one line of bounded length.
func shortened(err error) error {
	const most = 300
	text := strings.Join(strings.Fields(err.Error()), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return errors.New(printable(text))
}
