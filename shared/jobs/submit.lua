-- Accept jobs, all or none: create their records and queue their messages in one step. A job whose
-- id has a record with the same request is skipped. If a record has another request, or another job
-- of this call has the id, nothing is accepted.
-- KEYS 1 known queues (set)   2 limits of waiting jobs (hash: tenant, or '*' for all, to number)
--      3.. for each job its record (hash) and its queue list
-- ARGV 1.. for each job its request JSON and its message
--      last  '' if the fleet has one lane; else the waiting jobs of the other lanes as JSON (tenant with a limit, or '*' for
--            all, to number), or 'unknown'
-- Returns {'accepted', {for each job '' if it is new, else the request JSON of its record}},
-- or {'different', {for each job '' if it is new, else the request JSON under its id}},
-- or {'full', tenant or '*', its limit, how many jobs wait, how many more were submitted},
-- or {'uncounted', {each tenant or '*' that has a limit}} if what waits in other lanes is needed: call it again with that.
local stored, new, submitted, different = {}, {}, {['*'] = 0}, false
for i = 3, #KEYS, 2 do
  local job = (i - 1) / 2
  local request = new[KEYS[i]] or redis.pcall('HGET', KEYS[i], 'request')
  if type(request) == 'table' then request = 'no record' end  -- the key holds something else: its id is in use
  stored[job] = request or ''
  if request and request ~= ARGV[i - 2] then different = true end
  if not request then
    new[KEYS[i]] = ARGV[i - 2]
    local tenant = tenant_of(KEYS[i + 1]) or ''
    submitted['*'] = submitted['*'] + 1
    submitted[tenant] = (submitted[tenant] or 0) + 1
  end
end

if different then return {'different', stored} end

set_aside_unless('hash', KEYS[2])
if redis.call('EXISTS', KEYS[2]) == 1 then
  local waiting_of = count_waiting(KEYS[1], KEYS[2])
  local others = ARGV[#KEYS - 1]
  local elsewhere = others ~= '' and others ~= 'unknown' and cjson.decode(others) or {}
  local uncounted = {}
  for tenant, more in pairs(submitted) do
    local limit = redis.call('HGET', KEYS[2], tenant)
    if limit and #limit <= 15 and string.match(limit, '^%d+$') and more > 0 then  -- else it is damaged
      if others == 'unknown' then uncounted[#uncounted + 1] = tenant end
      local jobs = waiting_of(tenant) + (elsewhere[tenant] or 0)
      if jobs + more > tonumber(limit) then return {'full', tenant, limit, jobs, more} end
    end
  end
  if #uncounted > 0 then return {'uncounted', uncounted} end
end

local clock = redis.call('TIME')
local now = clock[1] .. '.' .. string.format('%06d', clock[2])
for i = 3, #KEYS, 2 do
  if stored[(i - 1) / 2] == '' then
    redis.call('HSET', KEYS[i], 'state', 'queued', 'request', ARGV[i - 2], 'submitted_at', now)
    push_message('LPUSH', KEYS[i + 1], ARGV[i - 1])
  end
end
add_accepted(KEYS[1], submitted)
return {'accepted', stored}
