// Package baseline holds the sizing policies that others use, to compare with.
package baseline
