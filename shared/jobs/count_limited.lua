-- Count the waiting jobs of all tenants that have a limit; `count_waiting.lua` comes before.
-- KEYS 1 known queues (set)   2 limits of waiting jobs (hash: tenant, or '*' for all, to number)
-- Returns {tenant or '*', how many of its jobs wait, …}.
set_aside_unless('hash', KEYS[2])
local waiting_of, answer = count_waiting(KEYS[1], KEYS[2]), {}
for _, tenant in ipairs(redis.call('HKEYS', KEYS[2])) do
  answer[#answer + 1] = tenant
  answer[#answer + 1] = waiting_of(tenant)
end
return answer
