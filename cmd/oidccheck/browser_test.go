package oidccheck

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/spillway-ml/spillway/cmd/internal/chromiumtest"
	"github.com/spillway-ml/spillway/cmd/internal/signin"
	"github.com/spillway-ml/spillway/cmd/internal/web"

	"github.com/spillway-ml/spillway/cmd/oidccheck/provider"
)

// TestSomebodySignsInAtThePage goes the whole way in a browser: the button, the provider's form, the page, and out.
func TestSomebodySignsInAtThePage(t *testing.T) {
	t.Parallel()
	chromiumtest.Need(t)
	stack := startStack(t, 1, signin.Options{Roles: roles, Title: "Zitadel"})
	stack.provider.Join("ada", "vision")
	server := stack.servers[0]
	tab := chromiumtest.NewTab(t)
	tab.Open(server.URL + "/costs")
	until(tab, `document.querySelector('.sign-in .with') !== null`)
	tab.Keep("sign-in")
	click(tab, `document.querySelector('.sign-in .with')`)
	login(tab, "ada")
	until(tab, `location.pathname === '/costs' && document.querySelector('.who') !== null`)
	if text := tab.Text(); !strings.Contains(text, "ada@example.com") || strings.Contains(text, "not known") {
		t.Errorf("the page reads:\n%s", text)
	}
	tab.Keep("signed-in")
	// No script reads what the browser is known by.
	cookies, err := chromedp.Run(tab.Context, chromedp.Evaluate[string](`document.cookie`))
	if err != nil || cookies != "" {
		t.Errorf("a script reads the cookies %q, %v", cookies, err)
	}
	click(tab, `document.querySelector('.who button')`)
	until(tab, `document.querySelector('.sign-in .with') !== null`)
	if left := server.Sessions.All(); len(left) > 0 {
		t.Errorf("after signing out there are %d sessions", len(left))
	}
}

// TestACommandLineIsLetInAtThePage compares a code and confirms it, as the browser of somebody does.
func TestACommandLineIsLetInAtThePage(t *testing.T) {
	t.Parallel()
	chromiumtest.Need(t)
	stack := startStack(t, 1, signin.Options{Roles: roles})
	stack.provider.Join("ada", "ml-platform")
	server := stack.servers[0]
	var device web.DeviceCode
	ask(t, server.URL+"/api/v1/session/device", struct{}{}, &device)
	tab := chromiumtest.NewTab(t)
	tab.Open(device.VerificationURI)
	until(tab, `document.querySelector('#code') !== null`)
	tab.Keep("type-the-code")
	click(tab, fmt.Sprintf(`(document.querySelector('#code').value = %q.toLowerCase(), document.querySelector('button'))`,
		device.UserCode))
	until(tab, `document.querySelector('a.with') !== null`)
	click(tab, `document.querySelector('a.with')`)
	login(tab, "ada")
	until(tab, `document.querySelector('.code') !== null`)
	if text := tab.Text(); !strings.Contains(text, device.UserCode) || !strings.Contains(text, "ada@example.com") {
		t.Errorf("the page reads:\n%s", text)
	}
	tab.Keep("let-it-in")
	click(tab, `document.querySelector('button[value=let]')`)
	until(tab, `document.body.innerText.includes('The command line is let in')`)
	var made web.MadeSession
	ask(t, server.URL+"/api/v1/session/device/token", web.WaitingDevice{DeviceCode: device.DeviceCode}, &made)
	if made.Role != "admin" || made.Token == "" {
		t.Errorf("the command line is given %+v", made)
	}
}

// until waits until an expression is true on whichever page the tab shows. What chromedp polls with stays with the page
// that it has begun on.
func until(tab *chromiumtest.Tab, what string) {
	tab.T.Helper()
	const limit = time.Minute
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for begun := time.Now(); ; <-look.C {
		is, err := chromedp.Run(tab.Context, chromedp.Evaluate[bool](what))
		if err == nil && is {
			return
		}
		if time.Since(begun) > limit || tab.Context.Err() != nil {
			tab.T.Fatalf("wait until %s: %v; the page reads:\n%s", what, err, tab.Text())
		}
	}
}

// login fills in the form of the provider.
func login(tab *chromiumtest.Tab, user string) {
	tab.T.Helper()
	until(tab, `document.querySelector('#password') !== null`)
	click(tab, fmt.Sprintf(`(document.querySelector('#username').value = %q,
		document.querySelector('#password').value = %q, document.querySelector('button'))`, user, provider.Password))
}

// click clicks once it has been answered, since the page may be gone then. One that is only just coming is tried again.
func click(tab *chromiumtest.Tab, element string) {
	tab.T.Helper()
	script := `(setTimeout((element) => element.click(), 0, ` + element + `), true)`
	_, err := chromedp.Run(tab.Context, chromedp.Evaluate[bool](script))
	for err != nil && tab.Context.Err() == nil && strings.Contains(err.Error(), "Not attached to an active page") {
		_, err = chromedp.Run(tab.Context, chromedp.Evaluate[bool](script))
	}
	if err != nil {
		tab.T.Fatal(err)
	}
}
