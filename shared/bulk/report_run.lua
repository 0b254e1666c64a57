-- Report to the receiver of a run what was not reported, and perhaps set the receiver first. If the run has succeeded, its
-- summary is written, or will not be.
-- KEYS 1 run (hash)   2 outbox (sorted set)   3 its messages (hash)
-- ARGV 1 `callback` of the run ('': as it is; see run_events.lua)   2 its `callback_data`
--      3 '1' to report the end once more
-- Returns 1 if the run has a receiver, else 0.
if redis.call('HEXISTS', KEYS[1], 'state') == 0 then return 0 end
if ARGV[1] ~= '' then set_receiver(KEYS[1], ARGV[1], ARGV[2]) end
if ARGV[3] == '1' then reopen_report(KEYS[1]) end
report_run(KEYS[1], KEYS[2], KEYS[3], true)
return redis.call('HEXISTS', KEYS[1], 'callback')
