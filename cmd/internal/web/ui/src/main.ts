import { mount } from 'svelte';
import App from './App.svelte';
import './app.css';
import { alerts } from './lib/alerts.svelte';
import { live, time } from './lib/live.svelte';
import { router } from './lib/router.svelte';
import { session } from './lib/session.svelte';

await session.start();
router.start();
time.start();
live.start();
alerts.start();
mount(App, { target: document.getElementById('app')! });
